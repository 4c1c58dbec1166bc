"""Replays as a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oddlot.core.support.text import clock
from oddlot.queue.replay.replay_figures import ReplayFigures

Cell = Callable[[ReplayFigures, float], str]
COLUMNS: dict[str, Cell] = {
    "policy": lambda one, _: one.policy,
    "cluster": lambda one, _: one.virtual_cluster or "all",
    "jobs": lambda one, _: f"{one.jobs:,}",
    "completion": lambda one, unit: f"{one.mean_completion / unit:,.2f}",
    "95 %": lambda one, unit: f"{one.p95_completion / unit:,.2f}",
    "queued": lambda one, unit: f"{one.mean_queued / unit:,.2f}",
    "slowdown": lambda one, _: f"{one.mean_slowdown:,.1f}",
    "in use": lambda one, _: f"{one.utilization:.1%}",
    "preempted": lambda one, _: f"{one.preemptions:,}",
}
"""Columns by name. Each cell is made from the figures and the seconds of the unit of time."""
OF_CLUSTERS = ("cluster", "jobs")


@dataclass(frozen=True)
class ReplayTable:
    """The heads and rows of a table, and a sentence that explains them."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str


def replay_table(figures: Sequence[ReplayFigures], by_cluster: bool = False) -> ReplayTable:
    """Return a row per policy, or with `by_cluster` one per policy and virtual cluster as well."""
    shown = [one for each in figures for one in [each, *(each.by_cluster if by_cluster else ())]]
    unit, seconds = clock(max(one.mean_completion for one in shown))
    columns = {name: cell for name, cell in COLUMNS.items() if by_cluster or name not in OF_CLUSTERS}
    note = (
        f"Mean times in {unit}, from submission to end (completion; 95 %: of 95 % of the jobs) and without running "
        "(queued). Slowdown: mean of completion time / duration, at least 10 s. In use: share of the machines, up to "
        "the last submission."
    )
    rows = [[cell(one, seconds) for cell in columns.values()] for one in shown]
    return ReplayTable([*columns], rows, note)
