"""What a strategy must not ask for, and the sentence that says so."""

from collections.abc import Callable
from math import inf, nan

import pytest

from oddlot.core import words as w
from oddlot.core.conductor import MOST_KEPT
from oddlot.core.errors import ProtocolError
from tests.core.scripted import Stage

Scene = Callable[[Stage], object]


def nothing(stage: Stage) -> None:
    stage.tell(w.Joined("a"))


def busy(stage: Stage) -> None:
    stage.start("a")


def inbox(stage: Stage) -> None:
    stage.arrived("a")


def point(stage: Stage) -> None:
    stage.arrived("a", "weights")


def leaving(stage: Stage) -> None:
    nothing(stage)
    stage.tell(w.Leaving("a"))


def cancelled(stage: Stage) -> None:
    busy(stage)
    stage.say([w.Cancel("a:1")])


def moved_on(stage: Stage) -> None:
    inbox(stage)
    stage.say([w.Step({"a:1": 1.0})])


@pytest.mark.parametrize(
    ("scene", "command", "sentence"),
    [
        (nothing, w.Assign("b", 8), r"Assign\(node='b'.* is impossible: b is not among view.nodes"),
        (leaving, w.Assign("a", 8), "a is not among view.nodes"),
        (busy, w.Assign("a", 8), "a has no free slot"),
        (cancelled, w.Assign("a", 8), "a has no free slot"),
        (nothing, w.Assign("a", 0), "asks for no samples"),
        (nothing, w.Assign("a", -1), "asks for no samples"),
        (nothing, w.Assign("a", 8, version=3), "version 3 is neither newest nor kept"),
        (nothing, w.Assign("a", 8, shard=1), "shards are numbered from 0 to 0"),
        (nothing, w.Assign("a", 8, shard=-1), "shards are numbered from 0 to 0"),
        (nothing, w.Assign("a", 8, again="a:1"), "a:1 is not among view.tasks"),
        (inbox, w.Assign("a", 8, again="a:1"), "a:1 is not among view.tasks"),
        (nothing, w.Cancel("a:1"), r"Cancel\(task='a:1'\) is impossible: it is not among view.tasks"),
        (cancelled, w.Cancel("a:1"), "is not among view.tasks"),
        (inbox, w.Cancel("a:1"), "is not among view.tasks"),
        (nothing, w.Step({}), r"Step\(.*\) merges nothing"),
        (nothing, w.Blend({}), "merges nothing"),
        (busy, w.Step({"a:1": 1.0}), "is impossible: a:1 is not in the inbox"),
        (moved_on, w.Step({"a:1": 1.0}), "a:1 is not in the inbox"),
        (point, w.Step({"a:1": 1.0}), "a:1 is of kind 'weights', its share 1.0"),
        (inbox, w.Blend({"a:1": 1.0}), "a:1 is of kind 'gradient', its share 1.0"),
        (inbox, w.Step({"a:1": nan}), "its share nan"),
        (inbox, w.Step({"a:1": inf}), "its share inf"),
        (inbox, w.Step({"a:1": -0.1}), "its share -0.1"),
        (nothing, w.Assign("a", 8, deadline=0.0), "has no time: a deadline is a number of seconds above 0"),
        (nothing, w.Assign("a", 8, deadline=nan), "has no time"),
        (nothing, w.Wake(nan), r"Wake\(at=nan\) would never ring"),
        (nothing, w.Wake(inf), "would never ring"),
        (busy, w.Drop("a:1"), "is not in the inbox"),
        (moved_on, w.Drop("a:1"), "is not in the inbox"),
        (moved_on, w.Evaluate(0), "version 0 is neither newest nor kept"),
        (moved_on, w.Keep(0), "version 0 is neither newest nor kept"),
        (moved_on, w.Release(1), r"Release\(version=1\) is impossible: it is not kept"),
    ],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
def test_an_impossible_wish_is_told(scene: Scene, command: w.Command, sentence: str) -> None:
    stage = Stage()
    scene(stage)
    with pytest.raises(ProtocolError, match=sentence):
        stage.say([command])


def test_a_worker_joins_once() -> None:
    stage = Stage()
    stage.tell(w.Joined("a"))
    with pytest.raises(ProtocolError, match="a joined twice: node ids are never reused"):
        stage.tell(w.Joined("a"))


def test_an_update_is_merged_once_even_in_one_answer() -> None:
    stage = Stage()
    stage.arrived("a")
    with pytest.raises(ProtocolError, match="it is not in the inbox"):
        stage.say([w.Step({"a:1": 1.0}), w.Drop("a:1")])


def test_a_strategy_keeps_so_many_versions_and_no_more() -> None:
    """Each is a whole model: the same number on every engine."""
    stage = Stage()
    for number in range(MOST_KEPT):
        stage.say([w.Keep(number)])
        stage.say([w.Keep(number)])  # again is no more
        stage.arrived("a")
        stage.say([w.Step({f"a:{number + 1}": 1.0})])
    with pytest.raises(ProtocolError, match="16 versions are kept, release one of them"):
        stage.say([w.Keep(MOST_KEPT)])
