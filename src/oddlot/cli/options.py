"""The arguments and options that several commands share, and the sample fleet."""

import sys
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from oddlot.cli import completion as completing
from oddlot.core.support.errors import InvalidValue, UsageError
from oddlot.core.support.text import field_docs
from oddlot.core.support.validation import default_of, hints_of, settings_of
from oddlot.history.run_settings import resume_mode
from oddlot.run.config import RunConfig, RunKeys
from oddlot.train.job_settings import JobSettings

SAMPLE_FLEET = Path(__file__).parents[1] / "machines" / "sample_fleet.toml"
"""Fleet file that is included in oddlot."""


def sample_fleet(*, quiet: bool) -> str:
    """Return the path of the sample fleet. Print a hint unless `quiet`."""
    if not quiet:
        message = (
            "no --machines: a sample fleet of 4 spot machines is simulated. Describe your own in a fleet file"
        )
        sys.stderr.write(f"{message}; start from {SAMPLE_FLEET}\n")
    return str(SAMPLE_FLEET)


METAVARS = dict.fromkeys(("codec", "device"), "NAME") | {"until": "GOAL", "out": "DIR", "checkpoints": "URL"}
METAVARS |= dict.fromkeys(("evaluate_every", "checkpoint_every"), "INTERVAL") | {"keep_best": "METRIC"}
METAVARS |= {"combine": "NAME", "gates": "NAME,NAME,..."}
PLAIN = (bool, int, float, str)
NUMBERS = {int: "N", float: "X"}


def _checked_resume(given: str | None) -> str | None:
    """Return the value of `--resume`. Raise InvalidValue if it is unknown."""
    try:
        return resume_mode(given)
    except InvalidValue as error:
        message = (
            f"--resume {given}: use --resume latest, or --resume auto, which starts a run if there is none"
        )
        raise error.with_message(message, flag=f"--resume {given}") from None


def _default(name: str, default: Any) -> str | bool:
    """Return a default for the help, or False to show none. For a boolean, return the name of its flag."""
    if isinstance(default, bool):
        return f"--{name}".replace("_", "-") if default else f"--no-{name}".replace("_", "-")
    return False if default in (None, "", ()) else str(default)


def _plain_type(hint: Any) -> Any:
    """Return the type of a hint, without its checks and None."""
    if get_origin(hint) is Annotated:
        return _plain_type(get_args(hint)[0])
    kinds = [_plain_type(part) for part in get_args(hint) if part is not type(None)]
    return next((kind for kind in kinds or [hint] if kind in PLAIN), str)


def _setting(of: type, name: str, default: str | None = None, complete: Any = None) -> Any:
    """Return the option for a field of a dataclass. Its help is the first sentence of the field's docs."""
    help_text, stop, _ = field_docs(of)[name].partition(". ")
    kind = _plain_type(hints_of(of)[name])
    return Annotated[
        kind | None,
        typer.Option(
            metavar=METAVARS.get(name) or NUMBERS.get(kind),
            help=help_text + "." * bool(stop),
            show_default=default or _default(name, default_of(settings_of(of)[name])),
            autocompletion=complete,
        ),
    ]


def _value(kind: type, metavar: str, help_text: str, **more: Any) -> Any:
    """Return an option with a value of this type."""
    return Annotated[kind | None, typer.Option(metavar=metavar, help=help_text, **more)]


def _text(metavar: str, help_text: str, **more: Any) -> Any:
    """Return an option with a string value."""
    return _value(str, metavar, help_text, **more)


def _number(help_text: str) -> Any:
    """Return an option with an integer value of at least 1."""
    return Annotated[int | None, typer.Option(min=1, metavar="N", help=help_text)]


def _switch(help_text: str, *names: str) -> Any:
    """Return an option without a value."""
    return Annotated[bool, typer.Option(*names, help=help_text)]


OF_WORKLOAD = "the workload's"
JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else.")]
RUN_FOLDER = Annotated[str, typer.Argument(metavar="RUN", help="Run folder.")]
RUN = {
    name: _setting(RunConfig, name, complete=completing.codecs if name == "codec" else None)
    for name in settings_of(RunConfig)
}
"""An option for each run setting."""
SIMULATED_OUT = _setting(RunKeys, "out", "runs/WORKLOAD-simulated-N")
WORKLOAD = typer.Argument(
    metavar="WORKLOAD",
    help="Built-in workload, module:function, or job file (.toml).",
    autocompletion=completing.workloads,
)
OPTIONS = {
    "workload": Annotated[str, WORKLOAD],
    "machines": _text("FILE.toml", "Fleet file.", show_default="a sample fleet"),
    "strategy": _text(
        "NAME",
        "Strategy (see `oddlot strategies`), or package.module:Class.",
        show_default="synchronous",
        autocompletion=completing.strategies,
    ),
    "engine": _text(
        "NAME",
        "Where workers run: local (this machine) or ray (a Ray cluster).",
        show_default="local",
        autocompletion=completing.engines,
    ),
    "workers": _text("N", "Number of workers. With --engine ray also MIN-MAX.", show_default="2"),
    "lr": Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            help="Learning rate: --set job.optimizer.lr=RATE.",
            show_default=OF_WORKLOAD,
        ),
    ],
    "batch_size": _setting(JobSettings, "batch_size", OF_WORKLOAD),
    "device": _setting(JobSettings, "device", OF_WORKLOAD, completing.devices),
    "data": _text(
        "DIR", "Folder of the workload's files: --set workload.data_dir=DIR.", show_default="$ODDLOT_DATA"
    ),
    "epochs": _number("Stop after N epochs: --until 'epochs>=N'. Not with --until."),
    "sets": Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="A.B=C",
            help="A job file setting, such as strategy.k=3 or engine.in_flight=2. Repeatable.",
            autocompletion=completing.settings,
        ),
    ],
    "out": _setting(RunKeys, "out", "runs/WORKLOAD-N"),
    "checkpoints": _setting(RunKeys, "checkpoints", "in the run folder"),
    "resume": _text(
        "latest|auto",
        "Resume the run in --out. With auto, start one if there is none.",
        callback=_checked_resume,
        autocompletion=completing.resume_modes,
    ),
    "new_segment": _switch("Resume with another strategy, optimizer or batch size.", "--new-segment"),
    "force": _switch("Overwrite the run in --out.", "--force"),
    "chaos": _text("FILE.toml", "Faults to inject."),
    "plan": _text("FILE.toml", "Run this plan, and plan again if progress falls behind."),
    "seeds": _number("Number of runs, on spot and on demand each."),
    "computes": _switch("Compute gradients.", "--compute/--no-compute"),
    "as_json": JSON,
    "quiet": _switch("Print errors and warnings only.", "--quiet"),
    **RUN,
}
"""The arguments and options of `oddlot train` and `oddlot simulate`."""
PLAN_OPTIONS = {
    "workload": OPTIONS["workload"],
    "machines": OPTIONS["machines"],
    "profile": _text("FILE.toml", "Speed of this machine, from oddlot profile."),
    "until": OPTIONS["until"],
    "minimize": _text("time|dollars", "What to minimize.", show_default="time"),
    "deadline": _value(float, "HOURS", "Largest time to the goal, in hours."),
    "budget": _value(float, "DOLLARS", "Largest cost."),
    "groups": _text("N,N,...", "Numbers of groups to choose from.", show_default="1, 2, 4, ..."),
    "batch_sizes": _text("N,N,...", "Batch sizes to choose from.", show_default=OF_WORKLOAD),
    "codecs": _text("NAME,NAME,...", "Codecs to choose from.", show_default="the run's"),
    "share": _value(
        float, "X", "Share of the run for trials of half the learning rate.", show_default="0.15"
    ),
    "rehearsals": _value(int, "N", "Number of complete runs of the best candidate.", show_default="3"),
    **{name: OPTIONS[name] for name in ("seed", "strategy", "lr", "device", "data", "sets")},
    "out": _text("FILE.toml", "Write the best option as a job file."),
    "html": _text("FILE.html", "Write a page with the table and plots."),
    "svg": _text("FILE.svg", "Write a plot of time against cost."),
    "as_json": JSON,
    "quiet": OPTIONS["quiet"],
}
"""The arguments and options of `oddlot plan`."""
DEFAULTS = {"computes": True}


def with_options(
    *without: str, **other: Any
) -> Callable[[Callable[[dict[str, Any]], None]], Callable[..., None]]:
    """Return a decorator that adds all `OPTIONS` except those in `without` to a command.

    `other` replaces options by name. The command gets a dict of the values as its only argument.
    """
    return with_these(
        {name: other.get(name, option) for name, option in OPTIONS.items() if name not in without}
    )


def workload_or_plan(given: dict[str, Any]) -> None:
    """Set the workload to the file of `--plan`. Raise UsageError unless exactly one of them is given."""
    workload, plan = given["workload"], given["plan"]
    if plan is not None and workload not in {None, plan}:
        message = f"--plan {plan} has its own workload: leave {workload} out"
        raise UsageError(message, "duplicate_setting", flag="--plan", before=workload)
    if workload is None and plan is None:
        message = "WORKLOAD is missing: name a workload or a job file, or pass --plan FILE.toml"
        raise UsageError(message, "missing_setting", name="workload")
    given["workload"] = workload or plan


def with_these(options: dict[str, Any]) -> Callable[[Callable[[dict[str, Any]], None]], Callable[..., None]]:
    """Return a decorator that adds options to a command, which gets a dict of their values as its only argument."""
    empty = {bool: False, str: Parameter.empty}  # a string without a default is a required argument
    defaults = {name: empty.get(get_args(option)[0]) for name, option in options.items()} | DEFAULTS

    def decorate(command: Callable[[dict[str, Any]], None]) -> Callable[..., None]:
        @wraps(command)
        def with_given(**given: Any) -> None:
            command(given)

        with_given.__signature__ = Signature(  # type: ignore[attr-defined]
            [
                Parameter(name, Parameter.KEYWORD_ONLY, default=defaults[name], annotation=option)
                for name, option in options.items()
            ]
        )
        with_given.__annotations__ = options
        return with_given

    return decorate


def find_modules_here() -> None:
    """Make modules of the current folder importable, after installed modules."""
    sys.path.append(str(Path.cwd()))
