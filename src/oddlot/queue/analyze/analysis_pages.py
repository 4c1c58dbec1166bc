"""The figures of a trace as tables, as an HTML page, and as an SVG file."""

from collections.abc import Iterator, Sequence
from html import escape
from math import log10
from pathlib import Path
from typing import NamedTuple

from oddlot.core.support.text import clock, counted, duration
from oddlot.queue.analyze.trace_analysis import WEEKDAYS, Group, Point, TraceAnalysis, shown
from oddlot.report.html_page import check_place, check_plot_place, document, write_text
from oddlot.report.metric_plot import MetricPlot, Panel, panels_of
from oddlot.report.svg_charts import Bar, Line, bars, lines

MANY_USERS = 20
"""Fewest users for which the share of the largest 5 % is shown."""


class Table(NamedTuple):
    """A table with its title and rows. The first column has names, the others numbers."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def summary(found: TraceAnalysis) -> str:
    """Return the facts about the trace as a sentence."""
    facts = [
        f"{found.jobs:,} jobs from {found.first} to {found.last}",
        f"{found.unit_hours:,.0f} {found.unit} hours",
    ]
    if found.users:
        facts.append(counted(found.users, "user"))
    if found.users >= MANY_USERS:
        facts.append(
            f"the largest 5 % of the users have {found.top_user_shares['5%']:.0%} of the {found.unit} time"
        )
    if found.without_gpu:
        facts.append(f"{found.without_gpu:,} jobs without GPU are not counted")
    if found.left_out:
        facts.append(f"{counted(found.left_out, 'line')} left out")
    return "; ".join(facts)


def tables_of(found: TraceAnalysis) -> Iterator[Table]:
    """Yield the tables: summaries, and groups by state, size, virtual cluster and user."""
    spreads = {"duration": found.durations, "queueing": found.queued}
    rows = [
        (name, *(duration(value) for value in (one.mean, one.median, one.p90, one.p99)))
        for name, one in spreads.items()
        if one is not None
    ]
    units = (found.units.mean, found.units.median, found.units.p90, found.units.p99)
    rows.append((f"{found.unit}s", *(f"{value:,.3g}" for value in units)))
    yield Table("Jobs", ("", "mean", "median", "90 %", "99 %"), rows)
    groups = {
        "State": found.by_state if any(one.name != "unknown" for one in found.by_state) else (),
        f"{found.unit}s, up to": found.by_size,
        "Virtual cluster": shown(found.by_virtual_cluster),
        "User": shown(found.by_user),
    }
    heads = ("jobs", f"{found.unit} hours", "share", "mean duration", "mean queueing")
    columns = len(heads) if found.queued else len(heads) - 1
    for title, those in groups.items():
        if those:
            yield Table(title, (title, *heads[:columns]), [_row(one)[: columns + 1] for one in those])


def write_page(found: TraceAnalysis, title: str, path: Path) -> None:
    """Write a page with all tables and charts. Raise UsageError if it cannot be written there."""
    check_place(path)
    body = [f"<h1>{escape(title)}</h1><p>{escape(summary(found))}</p>"]
    body += [
        lines(panel.title, panel.across, panel.up, panel.drawn, panel.end, values=[0.0], key=panel.title)
        for panel in panels(found)
    ]
    body.append(bars("Submissions per day", _weekdays(found), "weekdays"))
    body += [_html(table) for table in tables_of(found)]
    write_text(path, document(title, body, 2))


def write_plot(found: TraceAnalysis, title: str, path: Path) -> None:
    """Write the charts as an SVG file. Raise UsageError if it cannot be written there."""
    check_plot_place(path)
    MetricPlot(panels_of(title, panels(found))).save(path)


def panels(found: TraceAnalysis) -> list[Panel]:
    """Return the charts: distributions, users, the profile of the day, and the units in use."""
    drawn = [Line("jobs", _logarithmic(found.duration_curve), 0)]
    drawn.append(Line(f"{found.unit} time", _logarithmic(found.unit_hours_curve), 1))
    charts = [_panel("Durations", "log10 of the seconds", "share", drawn)]
    if found.queue_curve:
        curve = Line("jobs", _logarithmic(found.queue_curve), 0)
        charts.append(_panel("Queueing", "log10 of the seconds", "share of the jobs", [curve]))
    if found.user_curve:
        curve = Line("users", [(0.0, 0.0), *found.user_curve], 0)
        charts.append(_panel("Users", "share of the users", f"share of the {found.unit} time", [curve]))
    hours = Line("jobs", [(float(hour), value) for hour, value in enumerate(found.by_hour)], 0)
    charts.append(_panel("Profile of the day", "hour, UTC", "submissions per hour", [hours]))
    used = [Line("in use", found.in_use, 0)]
    if found.capacity:
        ends = ((0.0, float(found.capacity)), (found.in_use[-1][0], float(found.capacity)))
        used.append(Line("existing", ends, 1, dashed=True))
    unit, seconds = clock(found.in_use[-1][0])
    used = [line._replace(points=[(at / seconds, value) for at, value in line.points]) for line in used]
    return [*charts, _panel(f"{found.unit}s in use", unit, f"{found.unit}s", used)]


def _panel(title: str, across: str, up: str, drawn: Sequence[Line]) -> Panel:
    return Panel(title, across, up, drawn, max(1e-9, *(x for line in drawn for x, _ in line.points), 1e-9))


def _logarithmic(curve: Sequence[Point]) -> list[Point]:
    return [(log10(max(1.0, value)), share) for value, share in curve]


def _weekdays(found: TraceAnalysis) -> list[Bar]:
    return [
        Bar(name, {"jobs": value}, f"{value:,.0f}")
        for name, value in zip(WEEKDAYS, found.by_weekday, strict=True)
    ]


def _row(one: Group) -> tuple[str, ...]:
    queued = "" if one.mean_queued is None else duration(one.mean_queued)
    hours = f"{one.unit_hours:,.0f}"
    return one.name, f"{one.jobs:,}", hours, f"{one.share:.1%}", duration(one.mean_seconds), queued


def _html(table: Table) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in table.heads)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f"<h2>{escape(table.title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
