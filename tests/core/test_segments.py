"""The switch of a conductor to the settings of a new segment."""

from copy import deepcopy

import pytest

from oddlot import Asynchronous, LocalSGD
from oddlot.core.commands import Assign, Drop, Keep, Release, Start, Step, Wake
from oddlot.core.events import Arrived, Joined, NewSegment, Resumed
from oddlot.core.sample_spans import Span
from oddlot.core.support.serialization import Misfit, to_plain
from oddlot.core.tasks import Facts
from tests.core.scripted import Scripted, Stage

SEGMENT = NewSegment(to_plain(LocalSGD(steps=2)), batch=4, scheduled=True)


def begun() -> Stage:
    """Return a conductor at version 1: with a merged update, one in the inbox, an open task and a kept version."""
    stage = Stage()
    tasks = [stage.start(node) for node in "abc"]
    for task in tasks[:2]:
        stage.actions(Arrived(Facts(task.id, task.node, 0, 8)), now=10.0)
    stage.say([Keep(0), Keep(0), Step({tasks[0].id: 1.0}), Wake(20.0), Assign("a", 8)])
    return stage


def test_new_segment_discards_what_the_earlier_strategy_requested() -> None:
    stage = begun()
    conductor, before = stage.conductor, deepcopy(stage.conductor)
    record = conductor.handle(Resumed(0, segment=SEGMENT), 30.0)
    assert record.actions == (Drop("b:2"), Release(0), Release(0))
    assert conductor.strategy == LocalSGD(steps=2)
    assert (conductor.batch, conductor.scheduled, conductor.version) == (4, True, before.version)
    left = conductor.alarms, conductor.kept, conductor.inbox, conductor.busy, conductor.ledger.leases
    assert not any(left)
    assert conductor.worker_stats.usual is None, "task times of another strategy say nothing"
    assert conductor.rng.getstate() == before.rng.getstate()


def test_new_segment_leases_returned_samples_first() -> None:
    conductor = begun().conductor
    conductor.handle(Resumed(0, segment=SEGMENT), 30.0)
    (start,) = conductor.handle(Joined("d"), 31.0).actions
    assert isinstance(start, Start)
    task = start.task
    assert (task.id, task.kind, task.version, task.merged) == ("d:5", "delta", 1, 8)
    assert task.spans == (Span(0, 8, 16),)


def test_segments_are_replayed_from_their_events() -> None:
    """The earlier strategy is not needed for the state after the switch."""
    one, other = begun().conductor, begun().conductor
    other.strategy = Asynchronous()
    for conductor in (one, other):
        conductor.handle(Resumed(0, segment=SEGMENT), 30.0)
    assert one == other


def test_strategy_of_a_new_segment_receives_no_lost_worker() -> None:
    """It does not know the earlier workers."""
    conductor = begun().conductor
    conductor.handle(Resumed(0, segment=NewSegment(to_plain(Scripted()), batch=4)), 30.0)
    assert conductor.strategy == Scripted()


def test_unknown_strategy_of_a_segment_is_a_misfit() -> None:
    unknown = NewSegment({"is": "no.such:Strategy"}, batch=4)
    with pytest.raises(Misfit):
        begun().conductor.handle(Resumed(0, segment=unknown), 30.0)
