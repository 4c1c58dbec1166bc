"""By when answers are due, whatever has come in between."""

from math import inf

from oddlot.core.deadlines import MOST_STALE, Deadlines


def filled() -> Deadlines:
    """Of a to h, in a wild order; b, d and f are provisional."""
    deadlines = Deadlines()
    for when, task in ((5, "e"), (1, "a"), (8, "h"), (2, "b"), (7, "g"), (4, "d"), (3, "c"), (6, "f")):
        deadlines.set(float(when), task, provisional=task in "bdf")
    return deadlines


def test_they_come_in_their_order() -> None:
    deadlines = filled()
    assert deadlines.first == 1.0
    assert list(deadlines.due(3.0)) == ["a", "b", "c"]
    assert list(deadlines.due(3.5)) == []
    assert list(deadlines.due(99.0)) == ["d", "e", "f", "g", "h"]
    assert deadlines.first == inf


def test_provisional_ones_are_taken_out_once() -> None:
    deadlines = filled()
    assert deadlines.take_provisional() == ["b", "d", "f"]
    assert deadlines.take_provisional() == []
    deadlines.set(0.5, "b")
    assert list(deadlines.due(99.0)) == ["b", "a", "c", "e", "g", "h"]


def test_of_tasks_that_are_over_only_a_few_are_kept() -> None:
    """Of 1,000 only each hundredth is open, the last ones were set first."""
    deadlines, still_open = Deadlines(), {f"{n}": None for n in range(0, 1_000, 100)}
    for n in reversed(range(1_000)):
        deadlines.set(float(n), f"{n}", provisional=True)
    deadlines.forget(still_open)
    assert len(deadlines.heap) <= 2 * len(still_open) + MOST_STALE
    assert len(deadlines.provisional) <= 2 * len(still_open) + MOST_STALE
    assert list(deadlines.due(inf)) == list(still_open)
