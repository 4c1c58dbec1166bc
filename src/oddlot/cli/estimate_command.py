"""`oddlot simulate --seeds N`: compare runs on spot machines with runs on demand."""

import json
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from oddlot.cli.json_values import without_nan
from oddlot.cli.run_command import SIGNALLED, RunCommand
from oddlot.core.support.errors import JobError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from oddlot.planner.estimate import Estimate

MAX_COLUMNS = 1000
"""Largest width of a table, in columns."""


def estimate_runs(asked: RunCommand) -> None:
    """Simulate the runs on spot machines and on demand, and print their time and cost."""
    from oddlot.run.signals import StopRequest

    flags = {"--resume": asked.resume, "--force": asked.force, "--new-segment": asked.new_segment}
    if given := [flag for flag, value in flags.items() if value]:
        message = "--seeds starts new runs: leave --resume, --new-segment and --force out"
        raise UsageError(message, "not_with_seeds", flag=given[0])
    with StopRequest().heard() as stop:  # from the first import until the end of the output
        try:
            done = _estimate(asked)
        except KeyboardInterrupt:  # the second Ctrl-C
            print("killed", file=sys.stderr)
            raise typer.Exit(SIGNALLED + signal.SIGINT) from None
    if stop.signal:
        print(f"stopped; completed runs: {done}", file=sys.stderr)
        raise typer.Exit(SIGNALLED + stop.signal)


def _estimate(asked: RunCommand) -> int:
    """Simulate the runs, print the estimates, and return the number of completed runs."""
    from rich.console import Console
    from rich.measure import Measurement

    from oddlot.config.fleet_file import read_fleet
    from oddlot.config.job_file import JobFile
    from oddlot.machines.market import names_in
    from oddlot.planner.estimate import EstimateInterrupted, estimate, estimates

    settings = JobFile.read(asked.workload, asked.overrides)
    fleet = read_fleet(asked.fleet_file)
    console = Console(stderr=asked.as_json, quiet=asked.quiet)
    folder = settings.out

    def message(bought: str, number: int) -> None:
        Console(stderr=True, quiet=asked.quiet).print(
            f"simulating {bought} with seed {number}".replace("  ", " ")
        )

    aside = redirect_stdout(sys.stderr) if asked.as_json else nullcontext()
    with aside, settings.source.placed_in_any():
        try:
            found = estimate(
                settings.job(),
                settings.strategy(),
                fleet,
                seeds=asked.seeds or 1,
                computes=asked.computes,
                in_flight=settings.engine().in_flight,
                out=folder,
                on_run_start=message,
                chaos=asked.chaos_on(names_in(fleet.machines)),
                **settings.run_settings(),
            )
        except EstimateInterrupted as stopped:
            found = stopped.found
    if found:
        shown = estimates(f"{settings.name} on {asked.fleet_file}", found)
        whole = Measurement.get(console, console.options.update(max_width=MAX_COLUMNS), shown).maximum
        console.width = max(console.width, whole)  # numbers are never truncated
        console.print(shown, soft_wrap=True)
    tell_runs(found, folder, console)
    if not fleet.has_spot:
        console.print(
            "  this fleet has no spot zones ([[zones]]): there is nothing to compare with on demand"
        )
    if asked.as_json:
        plain = {one.bought or "runs": one.plain() for one in found}
        print(json.dumps(without_nan(plain), allow_nan=False))
    for one in found:
        if one.failure:
            sentence = f"all runs {one.bought} failed. First failure: {one.failure}"
            raise JobError(sentence, "all_runs_failed", bought=one.bought, failure=one.failure)
    return sum(len(one.summaries) for one in found)


def tell_runs(found: "Sequence[Estimate]", folder: str | None, console: "Console") -> None:
    """Print the numbers of runs that failed or made no update, and the folder of the runs."""
    from oddlot.history.run_outcome import FAILED
    from oddlot.report.progress_line import say

    summaries = [summary for one in found for summary in one.summaries]
    if failed := [summary["ended"] for summary in summaries if summary["ended"].startswith(FAILED)]:
        message = (
            f"  {len(failed)} of these runs failed and are excluded from medians and ranges. First failure: "
            f"{failed[0].removeprefix(FAILED)}"
        )
        say(console, message)
    if idle := sum(summary["versions"] == 0 for summary in summaries):
        console.print(f"  {idle} of these runs ended before their first update")
    if folder and Path(folder).expanduser().exists():
        say(console, f"  runs     {folder}")
