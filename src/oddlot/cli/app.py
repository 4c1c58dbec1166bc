"""The command line. Heavy imports are deferred until a command needs them."""

import json
import re
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from oddlot.cli import completion as completing, options
from oddlot.cli.demo_command import demo
from oddlot.cli.descriptions import options_text, strategy_text, workload_text
from oddlot.cli.json_values import without_nan
from oddlot.cli.plain_command import PlainCommand, PlainGroup
from oddlot.cli.queue_command import queue
from oddlot.cli.robust_stdio import lasting_output
from oddlot.cli.run_command import RunCommand
from oddlot.config.path_arguments import check_kinds
from oddlot.core.support.errors import CheckpointError, JobError, OddlotError, UsageError
from oddlot.core.support.text import printable
from oddlot.core.version import __version__

EXIT_CODES = (
    "Exit codes: 0 success; 1 internal error, or `report` or `replay` found an inconsistency; 2 invalid input; "
    "3 the run failed (the job's code, its numbers, a full disk); 4 the Ray cluster was lost, and the run can be "
    "resumed; 130 stopped by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP."
)
ARGUMENTS = re.compile(r"(?:\w+=[^\s,()]+(?:, )?)+ \((--[^()]+)\)")

app = typer.Typer(
    cls=PlainGroup,
    help="Train PyTorch models on machines that fail, differ in speed, or are far apart.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(demo, name="demo")
app.add_typer(queue, name="queue")
command = partial(app.command, cls=PlainCommand)


@command(epilog=EXIT_CODES)
@options.with_options("machines", "seeds", "computes", workload=Annotated[str | None, options.WORKLOAD])
def train(given: dict[str, Any]) -> None:
    """Train a workload on worker processes of this machine, or on a Ray cluster."""
    options.workload_or_plan(given)
    asked = RunCommand.of("train", given)
    check_kinds(asked.workload, chaos=asked.chaos)
    options.find_modules_here()
    asked.run()


@command(epilog=EXIT_CODES)
@options.with_options("engine", "workers", "plan", out=options.SIMULATED_OUT)
def simulate(given: dict[str, Any]) -> None:
    """Train a workload on a simulated fleet, under a virtual clock, and report time and cost.

    With --seeds N, simulate N runs on spot machines and N on demand, and compare them.
    """
    asked = RunCommand.of("simulate", given)
    check_kinds(asked.workload, asked.machines, asked.chaos)
    asked.check_simulated()
    options.find_modules_here()
    if asked.seeds is None:
        asked.run()
    else:
        from oddlot.cli.estimate_command import estimate_runs

        estimate_runs(asked)


@command()
def workloads(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Workload to describe.", autocompletion=completing.workloads),
    ] = None,
) -> None:
    """List the built-in workloads and their options, or describe a workload."""
    from oddlot.workloads.registry import WORKLOADS

    if name is not None:
        options.find_modules_here()
        print(workload_text(name))
        return
    for one, entry in WORKLOADS.items():
        print(f"{one}\n    {entry.description}")
        for line in options_text(one):
            print(f"    {line}")
    print("\n`oddlot workloads NAME` describes one, with the meaning of its options.")


@command()
def strategies(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Strategy to describe.", autocompletion=completing.strategies),
    ] = None,
) -> None:
    """List the strategies, or describe one: what it does, its settings, its paper."""
    from oddlot.strategies.registry import BY_NAME, WRAPPERS, summary_of

    if name is not None:
        options.find_modules_here()
        print(strategy_text(name))
        return
    known = BY_NAME | WRAPPERS
    width = max(map(len, known))
    for one, kind in known.items():
        print(f"{one:<{width}}  {summary_of(kind)}")
    print("\n`oddlot strategies NAME` describes one, with its settings.")


@command()
def replay(
    run: options.RUN_FOLDER,
    import_strategy: Annotated[
        bool, typer.Option("--import", help="Import the strategy that the log names. This runs its code.")
    ] = False,
) -> None:
    """Replay a run's log and verify that every decision is reproduced."""
    from oddlot.history.replay import replay as replayed

    if import_strategy:
        options.find_modules_here()
    found = replayed(run, import_strategy=import_strategy)
    if found.difference:
        message = f"{run}: {found.records:,} records were reproduced, then {found.difference}"
        print(printable(message), file=sys.stderr)
        raise typer.Exit(1)
    print(printable(f"{run}: all {found.records:,} records were reproduced"))


@command()
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders.")],
    html: Annotated[str | None, typer.Option(metavar="FILE.html", help="Write a report page.")] = None,
    as_json: options.JSON = False,
) -> None:
    """Summarize runs and verify exactly-once sample accounting."""
    from rich.console import Console

    from oddlot.report.html_page import check_place, write_page
    from oddlot.report.live_view import summary
    from oddlot.report.progress_line import say
    from oddlot.report.run_report import RunReport
    from oddlot.report.run_tables import segments_text

    if as_json and len(runs) > 1:
        message = "--json takes one run folder"
        raise UsageError(message, "several_runs", flag="--json", given=runs)
    if html is not None:
        html = str(Path(html).expanduser())
        check_place(Path(html))  # before any output
    found = [RunReport.read(run) for run in runs]
    console = Console(stderr=as_json)
    for one in found:
        if as_json:
            print(json.dumps(without_nan(one.plain()), allow_nan=False))
        else:
            closing = summary(one.title, one.summary, one.virtual, one.files, verdict=one.verdict)
            console.print(closing, soft_wrap=True)
            for number, text in enumerate(segments_text(one.settings)):
                say(console, f"  {'' if number else 'segments':<8} {text}")
            if one.injected_faults:
                say(console, f"  faults   {one.injected_faults}")
            if one.to_resume:
                say(console, f"  resume   {one.to_resume}")
    if html is not None:
        write_page(found, Path(html))
        say(console, f"  page     {html}")
    if any(one.proof.faults for one in found):
        raise typer.Exit(1)


@command()
def export(
    run: options.RUN_FOLDER,
    out: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE.safetensors", help="File to write. Default: RUN-WEIGHTS.safetensors here."
        ),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(metavar="last|best|ema", help="Weights to export.", autocompletion=completing.weights),
    ] = "last",
) -> None:
    """Write the weights of a run as a safetensors file, which loads without oddlot.

    The run may be active, killed or ended. The best weights need a run with --keep-best. With ema_decay, the last
    weights are the moving average; `ema` requires one.
    """
    from oddlot.core.support.text import counted, in_bytes
    from oddlot.run.export import export as exported

    done = exported(run, out, weights)
    figures = [f"{name} {value:.4f}" for name, value in done.metrics.items()]
    about = [f"{weights} weights", f"version {done.version:,}", *figures]
    size = f"{counted(done.tensors, 'tensor')}, {in_bytes(done.bytes)}"
    print(printable(f"{done.path}: {', '.join(about)}; {size}"))


@command()
def recommend(
    run: options.RUN_FOLDER,
    user: Annotated[str, typer.Option(metavar="ID", help="User, as in the log.")],
    count: Annotated[int, typer.Option(min=1, metavar="N", help="Number of items.")] = 10,
    weights: Annotated[
        str,
        typer.Option(metavar="last|best|ema", help="Weights to use.", autocompletion=completing.weights),
    ] = "last",
    titles: Annotated[
        str | None,
        typer.Option(metavar="FILE.csv", help="Titles of items: columns id and title, with a header."),
    ] = None,
    as_json: options.JSON = False,
) -> None:
    """Print the best items for a user, from a run of the workload recommend.

    Each item has the nearest items that the user has clicked. An unknown user gets the most popular items.
    """
    from oddlot.cli.recommend_command import recommend_items

    recommend_items(run, user, count, weights, titles, as_json=as_json)


@command()
def watch(run: options.RUN_FOLDER) -> None:
    """Follow a run in the terminal, from its folder, until it ends.

    Exit code 3 if the run failed or was killed.
    """
    from rich.console import Console

    from oddlot.cli.watch import watch as watched
    from oddlot.history.run_outcome import FAILED
    from oddlot.report.live_log import KILLED
    from oddlot.report.live_view import summary
    from oddlot.report.progress_line import say
    from oddlot.report.run_report import RunReport

    console = Console()
    ended = watched(run, console)
    found = RunReport.read(run)
    console.print(
        summary(found.title, found.summary | {"ended": ended}, found.virtual, found.files), soft_wrap=True
    )
    if found.to_resume:
        say(console, f"  resume   {found.to_resume}")
    if ended == KILLED or ended.startswith(FAILED):
        raise typer.Exit(JobError.exit_code)


@command()
def profile(
    workload: Annotated[
        str,
        typer.Argument(metavar="WORKLOAD", help="Workload to measure.", autocompletion=completing.workloads),
    ],
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the profile to this TOML file.")
    ] = None,
    as_json: options.JSON = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress.")] = False,
) -> None:
    """Measure a workload on this machine: speed by batch size, threads, bytes per codec, merge time."""
    from oddlot.cli.profile_command import profile_workload

    options.find_modules_here()
    profile_workload(workload, out, as_json=as_json, quiet=quiet)


@command(epilog=EXIT_CODES)
@options.with_these(options.PLAN_OPTIONS)
def plan(given: dict[str, Any]) -> None:
    """Find the fastest or cheapest way to train a workload on a fleet.

    Short trials of candidates compete on simulated machines, with real gradients. The goal needs a metric.
    """
    from oddlot.cli.plan_command import plan_workload

    check_kinds(given["workload"], given["machines"])
    options.find_modules_here()
    plan_workload(given)


@command()
def notice(
    pid: Annotated[int, typer.Argument(min=1, metavar="PID", help="Process id of a run or of a worker.")],
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Metadata service.", show_default="http://169.254.169.254"),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="Time between requests.", show_default="5.0"),
    ] = None,
) -> None:
    """Send SIGTERM to a process on an EC2 spot interruption notice."""
    from oddlot.cli.preemption_notice import EVERY_SECONDS, METADATA, watch

    print(f"polling {url or METADATA} every {every or EVERY_SECONDS:g} s for process {pid}", flush=True)
    message = watch(pid, url or METADATA, every or EVERY_SECONDS)
    print(f"{message}: sent SIGTERM to process {pid}" if message else f"process {pid} has ended")


@command()
def xmc_generate(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder for train.txt.gz and test.txt.gz.")],
    train_points: Annotated[int, typer.Option("--train", min=1, help="Training points.")] = 64_000,
    test_points: Annotated[int, typer.Option("--test", min=1, help="Test points.")] = 8_192,
    features: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Number of features.")] = 50_000,
    labels: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Number of labels.")] = 30_000,
    nonzeros: Annotated[float, typer.Option(min=1, help="Mean number of features of a point.")] = 75.0,
    labels_each: Annotated[float, typer.Option(min=1, help="Mean number of labels of a point.")] = 5.45,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Random seed.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing dataset.")] = False,
) -> None:
    """Write a synthetic dataset for extreme multi-label classification.

    A few labels are frequent, most are rare. For the size of Amazon-670K use --features 135909 --labels 670091 --train
    490449 --test 153025.
    """
    from oddlot.cli.xmc_command import write_datasets
    from oddlot.sparse.datasets.generating import Shape

    write_datasets(
        folder, train_points, test_points, Shape(features, labels, nonzeros, labels_each, seed), force
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
    """Hold the options of all commands."""


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
    """Run the app and return its exit code."""
    try:
        app(prog_name="oddlot")  # also under `python -m oddlot`
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except (UsageError, JobError, CheckpointError) as error:
        tell(error.with_message(as_options(str(error))))
        return error.exit_code
    return 0


def as_options(text: str) -> str:
    """Remove arguments of `fit` that are followed by their command-line options from a message.

    `force=True (--force)` becomes `--force`.
    """
    return ARGUMENTS.sub(r"\1", text)


def tell(error: OddlotError) -> None:
    """Print the error that ended the command."""
    print(f"oddlot: {printable(error)}", file=sys.stderr)


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {printable(as_options(str(message)))}", file=sys.stderr)
