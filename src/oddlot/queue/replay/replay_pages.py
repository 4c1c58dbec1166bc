"""Plots of replays: as an SVG file, and on an HTML page."""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from oddlot.core.support.text import duration
from oddlot.queue.replay.replay import Replay
from oddlot.queue.replay.replay_figures import ReplayFigures, distribution, load_curve
from oddlot.queue.replay.replay_table import replay_table
from oddlot.queue.replay.simulation import ReplayedJob
from oddlot.report.html_page import check_place, check_plot_place, document, write_text
from oddlot.report.metric_plot import MetricPlot, Panel, panels_of
from oddlot.report.svg_charts import Bar, Line, bars, lines

SHOWN_SHARE = 0.95
"""Distributions are drawn up to this quantile of the slowest policy."""


class Chart(NamedTuple):
    """Lines of all policies over one axis."""

    title: str
    up: str
    drawn: Sequence[Line]
    end: float
    """Seconds."""


def charts_of(replays: Sequence[Replay]) -> list[Chart]:
    """Return the charts: distributions of completion time and queueing delay, and the GPUs in use."""
    load = [Line(one.policy, load_curve(one), number) for number, one in enumerate(replays)]
    return [
        _distributions("Completion time", replays, lambda job: job.completion),
        _distributions("Queueing delay", replays, lambda job: job.waited),
        Chart("GPUs in use", "GPUs", load, max(line.points[-1][0] for line in load)),
    ]


def write_page(replays: Sequence[Replay], figures: Sequence[ReplayFigures], path: Path) -> None:
    """Write a page with the table and the charts. Raise UsageError if it cannot be written there."""
    check_place(path)
    title = f"Replay of {len(replays[0].jobs):,} jobs"
    body = [f"<h1>{title}</h1>", _table(figures)]
    for chart in charts_of(replays):
        drawn = lines(chart.title, "seconds", chart.up, chart.drawn, chart.end, values=[0.0], key=chart.title)
        body.append(drawn)
    if figures[0].by_cluster:
        body.append(bars("Mean completion time by virtual cluster", list(_cluster_bars(figures)), "clusters"))
    write_text(path, document(title, body, len(replays)))


def write_plot(replays: Sequence[Replay], path: Path) -> None:
    """Write the charts as an SVG file. Raise UsageError if it cannot be written there."""
    check_plot_place(path)
    panels = [Panel(chart.title, "seconds", chart.up, chart.drawn, chart.end) for chart in charts_of(replays)]
    MetricPlot(panels_of("Replay", panels)).save(path)


def _table(figures: Sequence[ReplayFigures]) -> str:
    table = replay_table(figures)
    head = "".join(f"<th>{escape(one)}</th>" for one in table.heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{escape(table.note)}</p>"


def _distributions(title: str, replays: Sequence[Replay], value: Callable[[ReplayedJob], float]) -> Chart:
    end = max(1.0, *(float(np.quantile([value(job) for job in one.jobs], SHOWN_SHARE)) for one in replays))
    drawn = [
        Line(one.policy, [point for point in distribution(map(value, one.jobs)) if point[0] <= end], number)
        for number, one in enumerate(replays)
    ]
    return Chart(title, "share of the jobs", drawn, end)


def _cluster_bars(figures: Sequence[ReplayFigures]) -> Iterator[Bar]:
    for group in zip(*(one.by_cluster for one in figures), strict=True):
        for one in group:
            name = f"{one.virtual_cluster} {one.policy}"
            yield Bar(name, {one.policy: one.mean_completion}, duration(one.mean_completion))
