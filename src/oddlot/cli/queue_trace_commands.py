"""`oddlot queue analyze` and `oddlot queue park`."""

import json
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oddlot.cli.options import JSON
from oddlot.cli.queue_replay_command import pairs, show_problems
from oddlot.core.support.errors import UsageError
from oddlot.core.support.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oddlot.queue.analyze.trace_analysis import TraceAnalysis
    from oddlot.queue.parking.rule_choice import ChosenRule, Parts
    from oddlot.queue.traces.trace import TraceProblem


def analyze(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="Log of jobs: a file, or a folder with one.")
    ],
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="philly, helios, slurm or csv. Default: by the header.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="FIELD=NAME,...", help="Columns of a CSV with other names.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page.")] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the plots.")] = None,
    as_json: JSON = False,
) -> None:
    """Print durations, states, sizes, queueing and the share of users of a log of jobs, as the study of Helios does.

    The page and the plots have their distributions, the profile of the day, and the GPUs in use.
    """
    from oddlot.queue.analyze.analysis_pages import write_page, write_plot
    from oddlot.queue.analyze.trace_analysis import analyze as analyzed
    from oddlot.queue.traces.read_trace import read_trace
    from oddlot.report.html_page import check_place, check_plot_place

    if html is not None:
        check_place(html)
    if svg is not None:
        check_plot_place(svg)
    read = read_trace(trace, kind, pairs(columns))
    found = analyzed(read)
    title = f"Jobs of {printable(trace.name)}"
    if html is not None:
        write_page(found, title, html)
    if svg is not None:
        write_plot(found, title, svg)
    if as_json:
        problems = [{"line": one.line, "reason": one.reason} for one in read.problems]
        typer.echo(json.dumps({**found.as_json(), "problems": problems}, allow_nan=False))
    else:
        _show_analysis(found, read.problems)


def _show_analysis(found: "TraceAnalysis", problems: "Sequence[TraceProblem]") -> None:
    from rich.console import Console
    from rich.table import Table

    from oddlot.queue.analyze.analysis_pages import summary, tables_of

    console = Console(highlight=False, soft_wrap=True)
    console.print(summary(found), markup=False)
    for one in tables_of(found):
        table = Table()
        for number, head in enumerate(one.heads):
            table.add_column(head, justify="right" if number else "left", no_wrap=True)
        for row in one.rows:
            table.add_row(*(printable(cell) for cell in row))
        console.print(table)
    show_problems(console, problems)


def park(
    series: Annotated[
        Path,
        typer.Argument(
            metavar="SERIES", help="CSV with the columns time, used and total, a line per minute."
        ),
    ],
    test_from: Annotated[
        str | None, typer.Option(metavar="DATE", help="First day of the test. Default: the last days.")
    ] = None,
    test_days: Annotated[int, typer.Option(metavar="N", min=1, help="Days of the test.")] = 14,
    max_wakeups: Annotated[
        float, typer.Option(metavar="X", min=0, help="Most wake-ups per day, before the test.")
    ] = 0.5,
    max_unserved: Annotated[
        float,
        typer.Option(metavar="X", min=0, max=1, help="Largest share of unserved ticks, before the test."),
    ] = 0.005,
    svg: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the curves to this SVG file.")
    ] = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Then power Slurm's nodes down and up by the rule `peak`.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Choose a rule that switches off idle machines, and test it on the last days of a series.

    Settings are chosen on the 30 days before the test, models are trained on what precedes. The default rule has the
    highest utilization there. With --slurm, the rule is applied every 10 minutes until Ctrl-C; slurm.conf needs
    SuspendProgram, ResumeProgram and a long SuspendTime.
    """
    from oddlot.queue.parking.node_series import read_series
    from oddlot.queue.parking.parking_plot import write_plot
    from oddlot.queue.parking.rule_choice import Limits, Parts, choose, default_of
    from oddlot.report.html_page import check_plot_place

    if svg is not None:
        check_plot_place(Path(svg).expanduser())
    parts = Parts.of(read_series(series), _time(test_from), test_days)
    chosen = choose(parts, Limits(max_wakeups, max_unserved))
    default = default_of(chosen)
    if default is None:
        message = (
            f"no rule keeps {max_wakeups:g} wake-ups per day and {max_unserved:g} unserved ticks: pass larger limits "
            "with --max-wakeups and --max-unserved"
        )
        raise UsageError(message, "no_rule", max_wakeups=max_wakeups, max_unserved=max_unserved)
    if svg is not None:
        write_plot(list(chosen.values()), Path(svg).expanduser())
    if as_json:
        rules = [one.as_json() for one in chosen.values()]
        found = {
            "default": default.name,
            "test": parts.days,
            "rules": rules,
            "problems": parts.series.problems,
        }
        typer.echo(json.dumps(found, allow_nan=False))
    else:
        _show_rules(parts, chosen, default)
    if slurm:
        _park_slurm(chosen)


def _park_slurm(chosen: "Mapping[str, ChosenRule]") -> None:
    from oddlot.queue.parking.node_series import TICK
    from oddlot.queue.parking.rule_choice import rule_of
    from oddlot.queue.parking.slurm_power import arguments
    from oddlot.queue.server.slurm_parking import park_slurm

    if "peak" not in chosen:
        message = "the rule peak keeps the limits with no setting: pass larger ones with --max-wakeups"
        raise UsageError(message, "no_rule")
    rule = rule_of(chosen["peak"].settings)
    with suppress(KeyboardInterrupt):
        park_slurm(rule, TICK, lambda command: typer.echo(" ".join(arguments(command))))


def _show_rules(parts: "Parts", chosen: "Mapping[str, ChosenRule]", default: "ChosenRule") -> None:
    from rich.console import Console
    from rich.table import Table

    from oddlot.queue.parking.rule_choice import RULES

    table = Table(title=f"Parking, tested {parts.days}", title_justify="left")
    for head in ("rule", "utilization", "parked", "wake-ups per day", "unserved"):
        table.add_column(head, justify="left" if head == "rule" else "right")
    before = default.test.utilization_before
    table.add_row("all machines on", f"{before:.1%}", "0", "0", "0 %")
    for one in chosen.values():
        test = one.test
        table.add_row(
            f"{one.name}{' (default)' if one is default else ''}",
            *(f"{test.utilization_after:.1%}", f"{test.parked:.1f}"),
            *(f"{test.wakeups_per_day:.2f}", f"{test.unserved_share:.2%}"),
        )
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    for one in chosen.values():
        settings = ", ".join(f"{name} {value}" for name, value in asdict(one.settings).items())
        console.print(f"  {one.name}: {RULES[one.name]}; {settings}", markup=False)
    if parts.series.problems:
        console.print(f"  {parts.series.problems:,} lines without usable numbers were left out")


def _time(date: str | None) -> float | None:
    if date is None:
        return None
    try:
        found = datetime.fromisoformat(date)
    except ValueError:
        message = f"--test-from {printable(date)}: write a date such as 2017-12-01"
        raise UsageError(message, "invalid_value", flag="--test-from", given=date) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
