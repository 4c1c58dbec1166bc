"""Deadlines of open tasks, in order."""

from math import inf
from random import Random

from oddlot.core.task_timeouts import MAX_STALE, Deadlines


def filled(count: int = 100) -> Deadlines:
    """Return deadlines of tasks 0, 1, 2, ... at 0 s, 1 s, 2 s, ..., set in random order. Every third is provisional."""
    deadlines = Deadlines()
    for n in Random(1).sample(range(count), count):
        deadlines.set(float(n), f"{n}", provisional=n % 3 == 0)
    return deadlines


def test_deadlines_are_due_in_order() -> None:
    deadlines = filled()
    assert deadlines.first == 0.0
    assert list(deadlines.due(3.0)) == [("0", True), ("1", False), ("2", False), ("3", True)]
    assert list(deadlines.due(3.5)) == []
    assert [task for task, _ in deadlines.due(99.0)] == [f"{n}" for n in range(4, 100)]
    assert deadlines.first == inf


def test_provisional_deadlines_are_taken_once() -> None:
    deadlines = filled()
    assert sorted(map(int, deadlines.take_provisional())) == list(range(0, 100, 3))
    assert deadlines.take_provisional() == []
    deadlines.set(0.5, "0")
    assert [task for task, _ in deadlines.due(99.0)] == ["0", *(f"{n}" for n in range(100) if n % 3)]


def test_most_deadlines_of_finished_tasks_are_removed() -> None:
    """Every hundredth of 1,000 tasks is open."""
    deadlines, still_open = filled(1_000), {f"{n}": None for n in range(0, 1_000, 100)}
    deadlines.forget(still_open)
    assert len(deadlines.heap) <= 2 * len(still_open) + MAX_STALE
    assert [task for task, _ in deadlines.due(inf)] == list(still_open)
