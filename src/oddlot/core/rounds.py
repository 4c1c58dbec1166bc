"""Rounds that do not wait for everybody, as several strategies have them."""

from collections.abc import Iterator

from oddlot.core.errors import UsageError
from oddlot.core.strategy import View, assign, assign_all, assign_idle, shares_by_samples
from oddlot.core.words import Arrived, Cancel, Cancelled, Command, Event, Joined, Step, UpdateId


def check_enough(k: int, workers: int) -> None:
    """UsageError: there will never be k of them."""
    if workers < k:
        raise UsageError(f"k = {k} results of {workers} workers: lower k or add workers", "k")


def fastest(
    event: Event, view: View, updates: dict[UpdateId, int], k: int, samples: int, measure: bool = False
) -> Iterator[Command]:
    """Collect the updates of a round, by their samples; at the k-th step along their mean, cancel the rest and give
    everybody `samples` samples of the next round. A round closes with fewer when fewer workers are left."""
    if isinstance(event, Arrived):
        updates[event.update.id] = event.update.samples
    if not updates:
        yield from assign_idle(view, samples)
    elif len(updates) >= min(k, len(view.nodes)) or not view.tasks:
        yield Step(shares_by_samples(updates), measure)
        updates.clear()
        yield from (Cancel(task) for task in view.tasks)
        yield from assign_all(view, samples)
    elif isinstance(event, Joined | Cancelled):
        yield from assign(view, event.node, samples)
