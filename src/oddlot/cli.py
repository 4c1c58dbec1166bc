"""The command line. Nothing heavy is imported before a command needs it."""

import json
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oddlot import __version__
from oddlot.core.errors import CheckpointError, JobError, UsageError
from oddlot.stdio import lasting_output

if TYPE_CHECKING:
    from oddlot.engines.host import Observer
    from oddlot.engines.on_simulator import Simulated
    from oddlot.engines.place import Place
    from oddlot.observe import Tally
    from oddlot.run import Run
    from oddlot.settings import JobFile, Override

EXIT_CODES = (
    "Exit codes: 0 done; 1 a bug of oddlot, with its traceback; 2 something impossible was asked for; "
    "3 the job's own code or numbers failed; 130 stopped by Ctrl-C, 143 by SIGTERM."
)
SIGNALLED = 128
"""and the signal's number: what a shell makes of a program that a signal has ended"""
RUNS = Path("runs")

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
Seed = Annotated[int | None, typer.Option(help="Of every source of chance.", show_default="0")]
Out = Annotated[str | None, typer.Option(metavar="DIR", help="The run's folder.", show_default="runs/TASK-N")]
SimulatedOut = Annotated[
    str | None, typer.Option(metavar="DIR", help="The run's folder.", show_default="runs/TASK-simulated-N")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, or the task's newest.")]
Force = Annotated[bool, typer.Option("--force", help="Throw away the run in --out.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
Workers = Annotated[int | None, typer.Option(help="Worker processes.", show_default="2")]
Machines = Annotated[str, typer.Option(metavar="FILE.toml", help="The fleet.")]


@app.command(epilog=EXIT_CODES)
def train(
    task: Task,
    strategy: Strategy = None,
    workers: Workers = None,
    until: Until = None,
    sets: Sets = None,
    seed: Seed = None,
    out: Out = None,
    resume: Resume = False,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train on worker processes of this machine."""
    flags = {"strategy": strategy, "workers": workers, "until": until, "seed": seed, "out": out}
    asked = Asked(shlex.join(["train", task]), task, flags, sets or [], resume, force, as_json, quiet)
    asked.run("", lambda settings: settings.local())


@app.command(epilog=EXIT_CODES)
def simulate(
    task: Task,
    machines: Machines,
    strategy: Strategy = None,
    until: Until = None,
    sets: Sets = None,
    seed: Seed = None,
    out: SimulatedOut = None,
    resume: Resume = False,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train on machines that exist in a file, under a virtual clock, to see time and cost."""
    for text in sets or []:
        if (key := text.partition("=")[0].strip()) in {"workers", "threads"}:
            raise UsageError(
                f"--set {text}: {machines} says what machines there are; `{key}` is for `oddlot train`"
            )

    def fleet(settings: "JobFile") -> "Simulated":
        from oddlot.engines.on_simulator import Simulated
        from oddlot.machines.read import read_machines

        return Simulated(read_machines(machines), settings.table.seed or 0, settings.table.in_flight or 1)

    flags = {"strategy": strategy, "until": until, "seed": seed, "out": out}
    command = shlex.join(["simulate", task, "--machines", machines])
    Asked(command, task, flags, sets or [], resume, force, as_json, quiet).run("-simulated", fleet)


@app.command()
def tasks() -> None:
    """List the built-in tasks and their options."""
    from oddlot.tasks import TASKS, options_of

    for name, entry in TASKS.items():
        print(f"{name}\n    {entry.description}")
        for option in options_of(name).values():
            print(f"    task_options.{option.name} = {json.dumps(option.default)}")


@app.command()
def strategies() -> None:
    """List the strategies: what they do, their settings, their papers."""
    from inspect import getdoc

    from oddlot.settings import describe_settings
    from oddlot.strategies import BY_NAME

    for name, kind in BY_NAME.items():
        print(name)
        for line in [*(getdoc(kind) or "").splitlines(), "", *describe_settings(kind, "strategy."), ""]:
            print(f"    {line}".rstrip())


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


def main() -> None:
    """Run the command line and exit with its code."""
    sys.path.insert(0, str(Path.cwd()))  # tasks of the user's, as `python -m` would find them
    warnings.showwarning = _print_warning
    with lasting_output() as answer:
        code = _run_app()
        answer.flush()
        if answer.problem:
            print(f"oddlot: stdout cannot be written: {answer.problem}", file=sys.stderr)
            code = code or UsageError.exit_code
    sys.exit(code)


def _run_app() -> int:
    """The exit code."""
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except (UsageError, JobError, CheckpointError) as error:
        print(f"oddlot: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {message}", file=sys.stderr)


@dataclass(frozen=True)
class Asked:
    """A run as the command line asks for it."""

    command: str
    task: str
    flags: dict[str, Any]
    sets: Sequence[str]
    resume: bool
    force: bool
    as_json: bool
    quiet: bool

    def run(self, suffix: str, place: "Callable[[JobFile], Place]") -> None:
        """Do it, and say what came of it."""
        folder = ""
        try:
            settings, folder = self._settings(suffix)
            stopped_by = self._fit(settings, place, Path(folder))
        except KeyboardInterrupt:  # the second one, or before there was anything to save
            there = bool(folder) and Path(folder).exists()
            hint = (
                f"killed; what was saved before is {self._hint(folder)}"
                if there
                else "stopped; nothing was saved"
            )
            print(hint, file=sys.stderr)
            stopped_by = signal.SIGINT
        if stopped_by:
            raise typer.Exit(SIGNALLED + stopped_by)

    def _hint(self, folder: str) -> str:
        return f"in {folder}. To go on:\n  {self.again(folder)}"

    def _settings(self, suffix: str) -> "tuple[JobFile, str]":
        """What is asked for, and the folder. A run that goes on keeps what is not said anew."""
        from oddlot.run_folder import RunFolder
        from oddlot.settings import JobFile

        folder = self.flags["out"]
        if self.resume and not self.task.endswith(".toml"):
            folder = folder or str(_newest(self.task.rpartition(":")[2] + suffix))
            before = RunFolder(folder).about.get("settings")
            return JobFile.read(self.task, self.overrides(), before), folder
        settings = JobFile.read(self.task, self.overrides())
        name = settings.name + suffix
        newest = _newest if self.resume else _next_free
        return settings, folder or settings.table.out or str(newest(name))

    def overrides(self) -> "list[Override]":
        """What the flags set."""
        from oddlot.settings import Override

        keys = {"strategy": ("strategy", "name")}
        flags = [
            Override(f"--{name} {value}", keys.get(name, (name,)), value)
            for name, value in self.flags.items()
            if value is not None
        ]
        return flags + [Override.parse(text) for text in self.sets]

    def again(self, folder: str) -> str:
        """The command that goes on with this run."""
        flags = [
            f"--{name} {shlex.quote(str(value))}"
            for name, value in self.flags.items()
            if value and name != "out"
        ]
        sets = [f"--set {shlex.quote(text)}" for text in self.sets]
        return " ".join(["oddlot", self.command, *flags, *sets, "--resume", "--out", shlex.quote(folder)])

    def _fit(self, settings: "JobFile", place: "Callable[[JobFile], Place]", folder: Path) -> int:
        """Train and say what came of it. The signal that has stopped it, if one has."""
        from rich.console import Console

        from oddlot.console import shown, summary
        from oddlot.observe import Tally

        console = Console(stderr=self.as_json, quiet=self.quiet)
        title = f"{settings.name} with {settings.table.strategy.name}"  # type: ignore[attr-defined]  # every strategy table has it
        tally = Tally()
        # What the job's own code prints is not part of the answer.
        aside = redirect_stdout(sys.stderr) if self.as_json else nullcontext()
        with aside, shown(console, f"{title} in {folder}", tally) as observer:
            run, stopped_by = self._trained(settings, place, folder, observer, tally)
        closing = summary(title, run.summary, self.command.startswith("simulate"))
        console.print(closing, soft_wrap=True)
        if self.as_json:
            print(json.dumps(_without_nan(run.summary), allow_nan=False))
        if stopped_by:
            hint = f"stopped; saved {self._hint(str(folder))}"
            console.print(hint, markup=False, highlight=False, soft_wrap=True)
        return stopped_by

    def _trained(
        self,
        settings: "JobFile",
        place: "Callable[[JobFile], Place]",
        folder: Path,
        observer: "Observer",
        tally: "Tally",
    ) -> "tuple[Run, int]":
        from oddlot.api import Interrupted, fit  # PyTorch comes with it
        from oddlot.train.data import Batches

        job = settings.job()
        tally.size = len(Batches(job.data, job.collate))
        try:
            with settings.source.placed((), ("job",), ("strategy",)):
                run = fit(
                    job,
                    settings.strategy(),
                    place(settings),
                    out=folder,
                    resume=self.resume,
                    force=self.force,
                    observers=[observer],
                    about={"settings": settings.source.plain},
                    **settings.fit_options(),
                )
        except Interrupted as stopped:
            return stopped.run, stopped.signal
        return run, 0


def _numbers(name: str) -> list[int]:
    """The numbers N of the runs in runs/NAME-N."""
    folders = RUNS.iterdir() if RUNS.is_dir() else ()
    found = (re.fullmatch(re.escape(name) + r"-(\d+)", folder.name) for folder in folders)
    return [int(match[1]) for match in found if match]


def _next_free(name: str) -> Path:
    return RUNS / f"{name}-{max(_numbers(name), default=0) + 1}"


def _newest(name: str) -> Path:
    numbers = _numbers(name)
    if not numbers:
        raise UsageError(f"there is no run {RUNS}/{name}-N to resume: name its folder with --out")
    return RUNS / f"{name}-{max(numbers)}"


def _without_nan(value: Any) -> Any:
    """The same with null for every number that JSON has not."""
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value
