"""Replays as a table."""

from collections.abc import Callable, Sequence

from oddlot.queue.replay.replay_figures import ReplayFigures

Cell = Callable[[ReplayFigures], str]
COLUMNS: dict[str, Cell] = {
    "policy": lambda one: one.policy,
    "cluster": lambda one: one.virtual_cluster or "all",
    "jobs": lambda one: f"{one.jobs:,}",
    "GPUs": lambda one: f"{one.gpus:,}",
    "completion (s)": lambda one: f"{one.mean_completion:,.0f}",
    "p95": lambda one: f"{one.p95_completion:,.0f}",
    "queued (s)": lambda one: f"{one.mean_queued:,.0f}",
    "p95 queued": lambda one: f"{one.p95_queued:,.0f}",
    "slowdown": lambda one: f"{one.mean_slowdown:,.1f}",
    "utilization": lambda one: f"{one.utilization:.1%}",
    "preemptions": lambda one: f"{one.preemptions:,}",
}
"""Columns by name. Times are means unless the name says otherwise."""


def heads() -> list[str]:
    """Return the names of the columns."""
    return [*COLUMNS]


def rows(figures: Sequence[ReplayFigures], by_cluster: bool = False) -> list[list[str]]:
    """Return a row per policy, or with `by_cluster` one per policy and virtual cluster as well."""
    shown = [one for each in figures for one in [each, *(each.by_cluster if by_cluster else ())]]
    return [[cell(one) for cell in COLUMNS.values()] for one in shown]
