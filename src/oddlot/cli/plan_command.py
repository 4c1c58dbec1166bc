"""`oddlot plan`: find the fastest or cheapest way to train a workload, and print and write it."""

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oddlot.cli.estimate_command import MAX_COLUMNS
from oddlot.cli.run_command import SIGNALLED, RunCommand
from oddlot.core.support.errors import InvalidValue, UsageError
from oddlot.core.support.user_warnings import warn

if TYPE_CHECKING:
    from rich.console import Console

    from oddlot.config.job_file import JobFile
    from oddlot.core.strategy import Strategy
    from oddlot.machines.market import Fleet
    from oddlot.planner.plan import Plan
    from oddlot.train.job import Job

SETTINGS = ("until", "seed", "strategy", "lr", "device", "data")
"""Options that are settings of a job file."""
ARGUMENTS = {
    "minimize": "minimize",
    "deadline": "deadline_hours",
    "budget": "budget_dollars",
    "share": "share",
    "rehearsals": "rehearsals",
}
"""Arguments of `oddlot.plan` by option."""
REQUEST = ("minimize", "deadline", "budget")
"""Options that a plan file keeps."""


@dataclass(frozen=True)
class Files:
    """The files that are written."""

    out: str | None
    html: str | None
    svg: str | None

    def check(self) -> None:
        """Raise UsageError if a file cannot be written or would overwrite another kind of file."""
        from oddlot.config.plan_file import check_plan_path
        from oddlot.report.html_page import check_place, check_plot_place

        if self.out is not None:
            check_plan_path(self.out)
        if self.html is not None:
            check_place(Path(self.html).expanduser())
        if self.svg is not None:
            check_plot_place(Path(self.svg).expanduser())


def plan_workload(given: dict[str, Any]) -> None:
    """Plan with the values `given` of the command's options, print the plan, and write its files."""
    from oddlot.run.signals import StopRequest

    files = Files(*(given.pop(name) for name in ("out", "html", "svg")))
    with StopRequest().heard() as stop:  # from the first import until the end of the output
        try:
            _plan(given, files)
        except KeyboardInterrupt:  # the second Ctrl-C
            print("killed", file=sys.stderr)
            raise typer.Exit(SIGNALLED + signal.SIGINT) from None
    if stop.signal:
        raise typer.Exit(SIGNALLED + stop.signal)


def _plan(given: dict[str, Any], files: Files) -> None:
    from rich.console import Console

    files.check()
    asked, settings, fleet, given = _read(given)
    aside = redirect_stdout(sys.stderr) if asked.as_json else nullcontext()
    with aside, _with_flags(given), settings.source.placed_in_any():
        job = settings.job()
        found, stopped = _found(job, fleet, settings, given, quiet=asked.quiet)
    console = Console(stderr=asked.as_json, quiet=asked.quiet)
    _show(found, f"{settings.name} on {asked.fleet_file}, until {found.goal}", console)
    _write(found, settings, job, fleet, asked.fleet_file, files, console)
    if asked.as_json:
        from oddlot.planner.plan_tables import plain

        print(json.dumps(plain(found), allow_nan=False))
    if stopped:
        print("stopped; the plan has what was found until then", file=sys.stderr)
    else:
        found.best  # noqa: B018 - raises an error


def _read(given: dict[str, Any]) -> "tuple[RunCommand, JobFile, Fleet, dict[str, Any]]":
    """Return the command, the settings of the run, the fleet, and the options. A plan file has defaults for some."""
    from oddlot.config.fleet_file import read_fleet
    from oddlot.config.job_file import JobFile
    from oddlot.config.plan_file import plan_in

    shared = {name: given[name] for name in ("workload", "machines", "sets", "as_json", "quiet")}
    flags = {name: given[name] for name in SETTINGS}
    asked = RunCommand(name="plan", flags=flags, resume=None, force=False, chaos=None, **shared)
    settings = JobFile.read(asked.workload, asked.overrides)
    earlier = plan_in(settings)
    if earlier is not None:
        settings, asked = earlier.before, replace(asked, machines=asked.machines or str(earlier.fleet))
        kept = {flag: getattr(earlier.prediction, ARGUMENTS[flag]) for flag in REQUEST if given[flag] is None}
        given = given | kept
        if given["profile"] is None and earlier.prediction.compute_factor != 1:
            message = f"{asked.workload} was planned with a profile: pass --profile FILE.toml too"
            raise UsageError(message, "missing_setting", name="profile")
    asked.check_simulated()
    if earlier is not None and asked.machines == str(earlier.fleet):
        return asked, settings, earlier.read_fleet(), given
    return asked, settings, read_fleet(asked.fleet_file), given


def _found(
    job: "Job", fleet: "Fleet", settings: "JobFile", given: dict[str, Any], *, quiet: bool
) -> "tuple[Plan, bool]":
    """Return the plan, and whether a signal stopped the search."""
    from rich.console import Console

    from oddlot.config.profile_file import read_profile
    from oddlot.planner.plan import PlanInterrupted, plan
    from oddlot.report.progress_text import shown_text

    if (in_flight := settings.engine().in_flight) > 1:
        message = f"engine.in_flight = {in_flight} is not planned: a plan has one open task per worker"
        warn(message, "in_flight_not_planned", in_flight=in_flight)
    arguments = {name: given[flag] for flag, name in ARGUMENTS.items() if given[flag] is not None}
    run = {name: value for name, value in settings.run_settings().items() if name != "checkpoints"}
    with shown_text(Console(stderr=True, quiet=quiet)) as on_progress:
        try:
            found = plan(
                job,
                fleet,
                strategies=_strategies(settings, fleet, given["groups"]),
                batch_sizes=_numbers("--batch-sizes", given["batch_sizes"]),
                codecs=_parts(given["codecs"]) or (None,),
                profile=None if given["profile"] is None else read_profile(given["profile"]),
                on_progress=on_progress,
                **arguments,
                **run,
            )
        except PlanInterrupted as stop:
            return stop.found, True
    return found, False


def _strategies(settings: "JobFile", fleet: "Fleet", groups: str | None) -> "Sequence[Strategy]":
    """Return the strategy of the job file in several numbers of groups, or alone if it has no rounds."""
    from oddlot.machines.market import names_in
    from oddlot.planner.candidates import group_counts, in_groups
    from oddlot.strategies.groups import Groups

    given, counts = settings.strategy(), _numbers("--groups", groups)
    if counts is not None and not isinstance(given, Groups):
        given = Groups(given)
    return in_groups(given, counts or group_counts(len(names_in(fleet.machines))))


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",")] if text is not None else []


def _numbers(flag: str, text: str | None) -> list[int] | None:
    """Return the numbers of an option such as `1,4,32`. Raise UsageError if one is invalid."""
    if text is None:
        return None
    parts = _parts(text)
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        message = f"{flag} {text}: write whole numbers of at least 1, such as {flag} 1,4,32"
        raise UsageError(message, "invalid_value", flag=flag, given=text)
    return [int(part) for part in parts]


@contextmanager
def _with_flags(given: dict[str, Any]) -> Iterator[None]:
    """Name the option in an error about an argument of `plan`."""
    try:
        yield
    except InvalidValue as error:
        flag = next((flag for flag, name in ARGUMENTS.items() if name == error.key), None)
        if flag is None:
            raise
        message = f"--{flag} {given[flag]}: must be {error.fields['must']}"
        raise error.with_message(message, flag=f"--{flag}") from None


def _show(found: "Plan", title: str, console: "Console") -> None:
    """Print the table of a plan and the lines below it."""
    from rich.measure import Measurement

    from oddlot.planner.plan_tables import notes, plan_table, tried
    from oddlot.report.progress_line import say

    if tried(found):
        table = plan_table(found, title)
        least = Measurement.get(console, console.options.update(max_width=MAX_COLUMNS), table).minimum
        console.width = max(console.width, least)  # numbers are never truncated
        console.print(table, soft_wrap=True)
    for name, text in notes(found):
        say(console, f"  {name:<10}{text}")


def _write(
    found: "Plan",
    settings: "JobFile",
    job: "Job",
    fleet: "Fleet",
    machines: str,
    files: Files,
    console: "Console",
) -> None:
    """Write the files of a plan, and print their paths and how to run it."""
    from oddlot.config.plan_file import write_plan
    from oddlot.planner.plan_page import write_frontier, write_plan_page
    from oddlot.report.progress_line import say

    has_best = bool(found.options) and found.options[0].is_feasible
    to_run = list[str]()
    if files.out is not None and has_best:
        write_plan(found, settings, job, fleet, machines, files.out)
        to_run = [f"oddlot train --plan {files.out}", f"oddlot train {files.out}"]
        say(console, f"  run       {to_run[0]}, or without new plans: {to_run[1]}")
    if files.html is not None:
        write_plan_page(found, f"Plan of {settings.name}", Path(files.html).expanduser(), to_run)
        say(console, f"  page      {files.html}")
    if files.svg is not None:
        why_not = write_frontier(found, Path(files.svg).expanduser())
        say(console, f"  plot      {why_not or files.svg}")
