"""Rounds that wait for the first k updates."""

from collections.abc import Generator

from oddlot.core.commands import Cancel, Command, Step
from oddlot.core.events import Arrived, Cancelled, Event, Joined
from oddlot.core.strategy import View, assign, assign_all, assign_idle, shares_by_weight
from oddlot.core.support.errors import UsageError
from oddlot.core.tasks import UpdateId


def check_enough(k: int, workers: int, setting: str = "k") -> None:
    """Raise UsageError if there are fewer than k workers. `setting` is the name of the setting for k."""
    if workers < k:
        where = "" if setting == "k" else f" (in {setting})"
        there = "is 1" if workers == 1 else f"are {workers}"
        message = f"k = {k}{where} needs {k} workers, but there {there}: lower k or add workers"
        raise UsageError(message, "too_few_workers", setting, k=k, workers=workers)


def fastest(
    event: Event,
    view: View,
    updates: dict[UpdateId, int],
    k: int | None,
    samples: int,
    measure: int = 0,
    then: int | None = None,
    deadline: float | None = None,
) -> Generator[Command, None, bool]:
    """Collect the updates of a round. At the k-th, apply their mean, cancel the other tasks and start the next round.

    `updates` has the weight of each update so far. `samples` is the number of samples per task, and `then` the number
    in the next round, by default `samples`. `deadline` is the timeout of each task. Return whether the round was
    closed.

    A round closes with fewer updates when fewer workers are left. Without k, it closes when no task is open, and
    workers that join wait for the next round. A worker with several tasks in flight may send several of the k updates.
    """
    if isinstance(event, Arrived):
        updates[event.update.id] = event.update.weight_merged
    if not updates:
        yield from assign_idle(view, samples, deadline=deadline)
    elif not view.tasks or (k is not None and len(updates) >= min(k, len(view.nodes))):
        yield Step(shares_by_weight(updates), measure)
        updates.clear()
        yield from (Cancel(task) for task in view.tasks)
        yield from assign_all(view, then or samples, deadline=deadline)
        return True
    elif isinstance(event, Cancelled) or (k is not None and isinstance(event, Joined)):
        yield from assign(view, event.node, samples, deadline=deadline)
    return False
