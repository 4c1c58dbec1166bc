"""The arguments and options that commands share."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, get_args, get_origin

import typer

from oddlot.cli import completion as completing
from oddlot.core.errors import InvalidValue
from oddlot.core.field_docs import field_docs
from oddlot.history.run_settings import resume_mode
from oddlot.run.config import RunConfig

METAVARS = {"until": "GOAL", "codec": "NAME", "evaluate_every": "INTERVAL", "checkpoint_every": "INTERVAL"}
PLAIN = (bool, int, float, str)
NUMBERS = {int: "N", float: "X"}


def _checked_resume(given: str | None) -> str | None:
    """Raise InvalidValue for another value of `--resume`, also for the flag that follows it."""
    try:
        return resume_mode(given)
    except InvalidValue as error:
        told = f"--resume {given}: use --resume latest, or --resume auto, which starts a run if there is none"
        raise error.retold(told, flag=f"--resume {given}") from None


Workload = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="Built-in workload, module:function, or job file (.toml).",
        autocompletion=completing.workloads,
    ),
]
Strategy = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Strategy (see `oddlot strategies`), or package.module:Class.",
        show_default="synchronous",
        autocompletion=completing.strategies,
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="A.B=C",
        help="A job file setting, such as strategy.k=3 or engine.in_flight=2. Repeatable.",
        autocompletion=completing.settings,
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Stop after N epochs: --until 'epochs>=N'. Not with --until."),
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--lr",
        metavar="RATE",
        help="Learning rate: --set job.optimizer.lr=RATE.",
        show_default="the workload's",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Samples per minibatch: --set job.batch_size=N.",
        show_default="the workload's",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Device: auto, cpu, cuda, cuda:1 or mps.",
        show_default="the workload's",
        autocompletion=completing.devices,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the workload's files: --set workload.data_dir=DIR.",
        show_default="$ODDLOT_DATA",
    ),
]
Out = Annotated[str | None, typer.Option(metavar="DIR", help="Run folder.", show_default="runs/WORKLOAD-N")]
SimulatedOut = Annotated[
    str | None, typer.Option(metavar="DIR", help="Run folder.", show_default="runs/WORKLOAD-simulated-N")
]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Folder or URL for checkpoints, such as s3://bucket/run.",
        show_default="in the run folder",
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="latest|auto",
        callback=_checked_resume,
        help="Resume --out (default: the workload's newest run). auto: or start one.",
        autocompletion=completing.resume_modes,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the run in --out.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors and warnings only.")]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Where workers run: local (this machine) or ray (a Ray cluster).",
        show_default="local",
        autocompletion=completing.engines,
    ),
]
Workers = Annotated[
    str | None,
    typer.Option(metavar="N", help="Number of workers. With --engine ray also MIN-MAX.", show_default="2"),
]
ChaosFile = Annotated[str | None, typer.Option("--chaos", metavar="FILE.toml", help="Faults to inject.")]
RunDir = Annotated[str, typer.Argument(metavar="RUN", help="Run folder.")]
Seeds = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of runs, on spot and on demand each."),
]
Compute = Annotated[bool, typer.Option("--compute/--no-compute", help="Train, or only simulate the time.")]
Machines = Annotated[
    str | None, typer.Option(metavar="FILE.toml", help="Fleet file.", show_default="a sample fleet")
]


def with_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each run setting, in place of its parameter `run`, a dict of those settings."""
    own = signature(command)
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in RUN.items()
    ]
    parameters = [
        each.replace(kind=Parameter.KEYWORD_ONLY) for each in own.parameters.values() if each.name != "run"
    ]

    @wraps(command)
    def with_run(**given: Any) -> None:
        run = {name: given.pop(name) for name in RUN}
        command(run=run, **given)

    with_run.__signature__ = own.replace(parameters=[*parameters, *added])  # type: ignore[attr-defined]
    with_run.__annotations__ = {each.name: each.annotation for each in [*parameters, *added]}
    return with_run


def _run_option(name: str, hint: Any) -> Any:
    """Return the option of a run setting, with the first sentence about it as help."""
    help_text, stop, _ = field_docs(RunConfig)[name].partition(". ")
    default, kind = getattr(RunConfig(), name), _plain_type(hint)
    return Annotated[
        kind | None,
        typer.Option(
            metavar=METAVARS.get(name) or NUMBERS.get(kind),
            help=help_text + "." * bool(stop),
            show_default=False if default in (None, "") else _default(name, default),
            rich_help_panel="Run settings",
            autocompletion=completing.codecs if name == "codec" else None,
        ),
    ]


def _default(name: str, default: Any) -> str:
    """Return a default as text: that of a flag as the flag."""
    flag = name.replace("_", "-")
    return str(default) if not isinstance(default, bool) else f"--{flag}" if default else f"--no-{flag}"


def _plain_type(hint: Any) -> Any:
    """Return the type that a hint with checks, or one that may be None, is about."""
    if get_origin(hint) is Annotated:
        return _plain_type(get_args(hint)[0])
    kinds = [_plain_type(part) for part in get_args(hint) if part is not type(None)]
    return next((kind for kind in kinds or [hint] if kind in PLAIN), str)


RUN = {name: _run_option(name, hint) for name, hint in RunConfig.flags().items()}
"""An option for each run setting."""
