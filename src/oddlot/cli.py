"""The command line. Nothing heavy is imported before a command needs it."""

import json
import shlex
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oddlot import __version__
from oddlot.asked import Asked, without_nan
from oddlot.core.errors import CheckpointError, JobError, OddlotError, UnknownName, UsageError
from oddlot.core.printable import printable
from oddlot.stdio import lasting_output

if TYPE_CHECKING:
    from oddlot.engines.on_simulator import Simulated
    from oddlot.settings import JobFile

EXIT_CODES = (
    "Exit codes: 0 done; 1 a bug of oddlot, with its traceback, or what `report` or `replay` finds does not add up; "
    "2 something impossible was asked for; 3 the run failed: the job's code, its numbers, a full disk; "
    "130 stopped by Ctrl-C, 143 by SIGTERM."
)

app = typer.Typer(
    help="Train PyTorch models on the machines one can get: slow ones, unequal ones, ones that vanish.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Task = Annotated[str, typer.Argument(help="A built-in task, package.module:function, or a job file (.toml).")]
Strategy = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The algorithm: see `oddlot strategies`.", show_default="synchronous"),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="A.B=C",
        help="A setting as a job file has it, such as codec=bf16, in_flight=2, evaluate_every='100 versions', "
        "job.batch=64, job.optimizer.lr=0.1. Repeatable.",
    ),
]
Until = Annotated[str | None, typer.Option(metavar="GOAL", help='Such as "accuracy>=0.98 or epochs>=30".')]
Data = Annotated[
    str | None, typer.Option(metavar="DIR", help="Where the task's files are: its option data_dir.")
]
Seed = Annotated[int | None, typer.Option(help="Of every source of chance.", show_default="0")]
Out = Annotated[str | None, typer.Option(metavar="DIR", help="The run's folder.", show_default="runs/TASK-N")]
SimulatedOut = Annotated[
    str | None, typer.Option(metavar="DIR", help="The run's folder.", show_default="runs/TASK-simulated-N")
]
CheckpointEvery = Annotated[
    str | None, typer.Option(metavar="RHYTHM", help='Such as "100 versions".', show_default="60 seconds")
]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Another place for checkpoints: a folder, s3://...", show_default="in DIR"
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, or the task's newest.")]
Force = Annotated[bool, typer.Option("--force", help="Throw away the run in --out.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors and warnings.")]
Workers = Annotated[int | None, typer.Option(help="Worker processes.", show_default="2")]
ChaosFile = Annotated[
    str | None, typer.Option("--chaos", metavar="FILE.toml", help="What is to go wrong on purpose.")
]
RunDir = Annotated[str, typer.Argument(metavar="RUN", help="A run's folder.")]
Seeds = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="So many runs each, spot and on demand: medians and ranges."),
]
Maths = Annotated[
    bool,
    typer.Option("--maths/--no-maths", help="Whether to train, or only to keep the time, for large fleets."),
]
Machines = Annotated[str, typer.Option(metavar="FILE.toml", help="The fleet.")]


@app.command(epilog=EXIT_CODES)
def train(
    task: Task,
    strategy: Strategy = None,
    workers: Workers = None,
    data: Data = None,
    until: Until = None,
    sets: Sets = None,
    seed: Seed = None,
    out: Out = None,
    checkpoint_every: CheckpointEvery = None,
    checkpoints: Checkpoints = None,
    resume: Resume = False,
    force: Force = False,
    chaos: ChaosFile = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train on worker processes of this machine (on the machines of a file: `oddlot simulate`)."""
    flags = {"strategy": strategy, "workers": workers, "data": data, "until": until, "seed": seed, "out": out}
    flags |= {"checkpoint_every": checkpoint_every, "checkpoints": checkpoints}
    _find_modules_here()
    command = shlex.join(["train", task])
    asked = Asked(command, task, flags, sets or [], resume, force, as_json, quiet, chaos, on_workers=True)
    asked.run("", lambda settings: settings.local())


@app.command(epilog=EXIT_CODES)
def simulate(
    task: Task,
    machines: Machines,
    strategy: Strategy = None,
    data: Data = None,
    until: Until = None,
    sets: Sets = None,
    seed: Seed = None,
    out: SimulatedOut = None,
    checkpoint_every: CheckpointEvery = None,
    checkpoints: Checkpoints = None,
    resume: Resume = False,
    force: Force = False,
    chaos: ChaosFile = None,
    seeds: Seeds = None,
    maths: Maths = True,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train on machines that exist in a file, under a virtual clock, to see time and cost.

    With --seeds it is trained so many times, with other luck each time, on the spot market and on demand, and what that
    takes and costs is said beside each other.
    """
    for text in sets or []:
        if (key := text.partition("=")[0].strip()) in {"workers", "threads", "dollars_per_hour"}:
            told = f"--set {text}: {machines} says what machines there are; `{key}` is for `oddlot train`"
            raise UsageError(told, "not_simulated", flag=f"--set {text}", name=key)

    def fleet(settings: "JobFile") -> "Simulated":
        from oddlot.engines.on_simulator import Simulated
        from oddlot.machines.read_fleet import read_fleet

        table = settings.table
        return Simulated.of(read_fleet(machines), table.seed or 0, table.in_flight or 1, maths)

    flags = {"strategy": strategy, "data": data, "until": until, "seed": seed, "out": out}
    flags |= {"checkpoint_every": checkpoint_every, "checkpoints": checkpoints}
    _find_modules_here()
    command = shlex.join(["simulate", task, "--machines", machines, *([] if maths else ["--no-maths"])])
    asked = Asked(command, task, flags, sets or [], resume, force, as_json, quiet, chaos)
    if seeds is None:
        asked.run("-simulated", fleet)
    else:
        asked.estimate(machines, seeds, maths)


@app.command()
def tasks() -> None:
    """List the built-in tasks and their options."""
    from oddlot.tasks import TASKS, options_of

    for name, entry in TASKS.items():
        print(f"{name}\n    {entry.description}")
        for option in options_of(name).values():
            print(f"    task_options.{option.name} = {json.dumps(option.default)}")


@app.command()
def strategies(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="This one alone.")] = None,
) -> None:
    """List the strategies: what they do, their settings, their papers."""
    from inspect import getdoc

    from oddlot.listed import describe_settings
    from oddlot.strategies import BY_NAME, WRAPPERS

    known = {**BY_NAME, **WRAPPERS}
    if name is not None and name not in known:
        raise UnknownName("strategy", name, known)
    for one, kind in known.items() if name is None else [(name, known[name])]:
        print(one)
        for line in [*(getdoc(kind) or "").splitlines(), "", *describe_settings(kind, "strategy."), ""]:
            print(f"    {line}".rstrip())


@app.command()
def replay(
    run: RunDir,
    import_strategy: Annotated[
        bool, typer.Option("--import", help="Import the strategy that the log names, which runs its code.")
    ] = False,
) -> None:
    """Feed a run's log to fresh books: they must decide the same."""
    from oddlot.report.replay import replay as replayed

    if import_strategy:
        _find_modules_here()
    found = replayed(run, import_strategy=import_strategy)
    if found.difference:
        told = f"{run}: {found.records:,} records are decided the same, then {found.difference}"
        print(printable(told), file=sys.stderr)
        raise typer.Exit(1)
    print(printable(f"{run}: all {found.records:,} records are decided the same"))


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    html: Annotated[
        str | None, typer.Option(metavar="FILE.html", help="Write a page about them, for any browser.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what became of runs, live or ended, and that every sample counted exactly once."""
    from rich.console import Console

    from oddlot.console import say, summary
    from oddlot.report.figures import Figures
    from oddlot.report.page import check_place, write_page

    if as_json and len(runs) > 1:
        told = "--json is about one run: name one folder"
        raise UsageError(told, "several_runs", flag="--json", given=runs)
    if html is not None:
        check_place(Path(html))  # before anything is told
    found = [Figures.read(run) for run in runs]
    console = Console(stderr=as_json)
    for one in found:
        if as_json:
            print(json.dumps(without_nan(one.plain()), allow_nan=False))
        else:
            console.print(summary(one.title, one.summary, one.virtual, one.files), soft_wrap=True)
            if one.struck:
                say(console, f"  faults   {one.struck}")
            say(console, f"  proof    {one.told}")
    if html is not None:
        write_page(found, Path(html))
        say(console, f"  page     {html}")
    if any(one.proof.faults for one in found):
        raise typer.Exit(1)


@app.command()
def watch(run: RunDir) -> None:
    """Follow a run under way, from its folder, and say what it waits for when it waits.

    Exit code 3 if the run has failed or was killed.
    """
    from rich.console import Console

    from oddlot.console import summary
    from oddlot.report.ending import FAILED
    from oddlot.report.figures import Figures
    from oddlot.report.follow import KILLED
    from oddlot.watch import watch as watched

    console = Console()
    ended = watched(run, console)
    found = Figures.read(run)
    console.print(
        summary(found.title, found.summary | {"ended": ended}, found.virtual, found.files), soft_wrap=True
    )
    if ended == KILLED or ended.startswith(FAILED):
        raise typer.Exit(JobError.exit_code)


@app.command()
def notice(
    pid: Annotated[int, typer.Argument(min=1, help="The process of a run, or of one of its workers.")],
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The metadata service.", show_default="http://169.254.169.254"),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            min=0.1, metavar="SECONDS", help="How often to ask.", show_default="5.0, as Amazon recommends"
        ),
    ] = None,
) -> None:
    """Send SIGTERM to a process when the cloud (Amazon's form) wants this spot instance back."""
    from oddlot.engines.notice import EVERY_SECONDS, METADATA, watch

    print(f"asking {url or METADATA} every {every or EVERY_SECONDS:g} s, for process {pid}", flush=True)
    told = watch(pid, url or METADATA, every or EVERY_SECONDS)
    print(f"{told}: told process {pid}" if told else f"process {pid} has ended")


@app.command()
def xmc_generate(
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help="Where train.txt.gz and test.txt.gz are written.")
    ],
    train_points: Annotated[int, typer.Option("--train", min=1, help="Points to train on.")] = 64_000,
    test_points: Annotated[int, typer.Option("--test", min=1, help="Points to test on.")] = 8_192,
    features: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="That there are.")] = 50_000,
    labels: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="That there are.")] = 30_000,
    nonzeros: Annotated[float, typer.Option(min=1, help="Features of a point, on average.")] = 75.0,
    labels_each: Annotated[float, typer.Option(min=1, help="Labels of a point, on average.")] = 5.45,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1)] = 0,
    force: Annotated[bool, typer.Option("--force", help="Throw away a set that is there.")] = False,
) -> None:
    """Write a set for extreme multi-label classification: few labels are frequent, most are rare.

    As large as Amazon-670K: --features 135909 --labels 670091 --train 490449 --test 153025.
    """
    from oddlot.sparse.xmc.generating import Shape, generate
    from oddlot.sparse.xmc.writing import write_xmc
    from oddlot.tasks.xmc_place import check_average, check_place

    check_average("--nonzeros", nonzeros, "--features", features)
    check_average("--labels-each", labels_each, "--labels", labels)
    check_place(folder, force)
    shape = Shape(features, labels, nonzeros, labels_each, seed)
    try:  # both, before anything is thrown away
        made = {
            name: generate(points, shape, stream)
            for stream, (name, points) in enumerate({"train": train_points, "test": test_points}.items(), 1)
        }
    except (MemoryError, ValueError) as error:
        own = {"code": "set_too_large", "fields": {}} | vars(error)
        raise UsageError(str(error), own["code"], **own["fields"]) from None
    for name, (x, y) in made.items():
        points, path = len(x), Path(folder) / f"{name}.txt.gz"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for old in ("test.txt", "test.txt.gz"):  # so that no other set's is ever beside what is written
                (path.parent / old).unlink(missing_ok=True)
            write_xmc(path, x, y)
            (path.parent / f"{name}.txt").unlink(missing_ok=True)
        except OSError as error:
            reason = error.strerror or str(error)
            told = f"{path} cannot be written: {reason}"
            raise UsageError(told, "unwritable_file", path=str(path), reason=reason) from None
        print(
            f"{path}: {points:,} points, {len(x.indices) / points:.1f} of {features:,} features and "
            f"{len(y.indices) / points:.2f} of {labels:,} labels each"
        )


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Hold what all commands have in common."""


def _find_modules_here() -> None:
    """Let a user's modules be imported from the current folder, after all that is installed."""
    sys.path.append(str(Path.cwd()))


def main() -> None:
    """Run the command line and exit with its code."""
    warnings.showwarning = _print_warning
    with lasting_output() as answer:
        code = _run_app()
        answer.flush()
        if reason := answer.problem:
            tell(UsageError(f"stdout cannot be written: {reason}", "unwritable_stdout", reason=reason))
            code = code or UsageError.exit_code
    sys.exit(code)


def _run_app() -> int:
    """The exit code."""
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except (UsageError, JobError, CheckpointError) as error:
        tell(error)
        return error.exit_code
    return 0


def tell(error: OddlotError) -> None:
    """Print what has ended the command."""
    print(f"oddlot: {printable(error)}", file=sys.stderr)


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {printable(message)}", file=sys.stderr)
