"""Invalid commands of strategies."""

from collections.abc import Callable
from math import inf, nan

import pytest

from oddlot.core.commands import (
    Assign,
    Blend,
    Cancel,
    Command,
    Complete,
    Drop,
    Evaluate,
    Keep,
    Release,
    Step,
    Wake,
)
from oddlot.core.conductor_commands import MAX_KEPT
from oddlot.core.events import Joined, Leaving, ModelReceived
from oddlot.core.peers import PeerModel
from oddlot.core.support.errors import ProtocolError
from tests.core.scripted import Stage
from tests.transcripts import raises

Scene = Callable[[Stage], object]


def nothing(stage: Stage) -> None:
    stage.tell(Joined("a"))


def busy(stage: Stage) -> None:
    stage.start("a")


def inbox(stage: Stage) -> None:
    stage.arrived("a")


def point(stage: Stage) -> None:
    stage.arrived("a", "weights")


def sums(stage: Stage) -> None:
    """Three sums of neighboring samples, and a gradient."""
    for node in "abc":
        stage.arrived(node, "sum")
    stage.arrived("d")


def leaving(stage: Stage) -> None:
    nothing(stage)
    stage.tell(Leaving("a"))


def cancelled(stage: Stage) -> None:
    busy(stage)
    stage.say([Cancel("a:1")])


def moved_on(stage: Stage) -> None:
    inbox(stage)
    stage.say([Step({"a:1": 1.0})])


def two_models(stage: Stage) -> None:
    for peer in "pq":
        stage.tell(ModelReceived(PeerModel(f"{peer}>1", peer, 8)))


@pytest.mark.parametrize(
    ("scene", "command", "code"),
    [
        (nothing, Assign("b", 8), "no_such_node"),
        (leaving, Assign("a", 8), "no_such_node"),
        (busy, Assign("a", 8), "no_free_slot"),
        (cancelled, Assign("a", 8), "no_free_slot"),
        (nothing, Assign("a", 0), "no_samples"),
        (nothing, Assign("a", -1), "no_samples"),
        (nothing, Assign("a", 8, version=3), "version_not_kept"),
        (nothing, Assign("a", 8, shard=1), "no_such_shard"),
        (nothing, Assign("a", 8, shard=-1), "no_such_shard"),
        (nothing, Assign("a", 8, copy_of="a:1"), "no_such_task"),
        (inbox, Assign("a", 8, copy_of="a:1"), "no_such_task"),
        (nothing, Cancel("a:1"), "no_such_task"),
        (cancelled, Cancel("a:1"), "no_such_task"),
        (inbox, Cancel("a:1"), "no_such_task"),
        (nothing, Step({}), "empty_merge"),
        (nothing, Blend({}), "empty_merge"),
        (busy, Step({"a:1": 1.0}), "no_such_update"),
        (moved_on, Step({"a:1": 1.0}), "no_such_update"),
        (point, Step({"a:1": 1.0}), "unmergeable_update"),
        (inbox, Blend({"a:1": 1.0}), "unmergeable_update"),
        (inbox, Step({"a:1": nan}), "unmergeable_update"),
        (inbox, Step({"a:1": inf}), "unmergeable_update"),
        (inbox, Step({"a:1": -0.1}), "unmergeable_update"),
        (sums, Step({"a:1": 0.5, "b:2": 0.25}), "incomplete_sum"),
        (sums, Step({"a:1": 0.5, "c:3": 0.5}), "incomplete_sum"),
        (sums, Step({"c:3": 0.5, "d:4": 0.5}), "incomplete_sum"),
        (sums, Step({"a:1": 0.5, "b:1": 0.5}), "no_such_update"),
        (nothing, Assign("a", 8, deadline=0.0), "invalid_deadline"),
        (nothing, Assign("a", 8, deadline=nan), "invalid_deadline"),
        (nothing, Wake(nan), "alarm_never_rings"),
        (nothing, Wake(inf), "alarm_never_rings"),
        (busy, Drop("a:1"), "no_such_update"),
        (moved_on, Drop("a:1"), "no_such_update"),
        (moved_on, Evaluate(0), "version_not_kept"),
        (moved_on, Keep(0), "version_not_kept"),
        (moved_on, Release(1), "version_not_kept"),
        (two_models, Complete("p>1", "q>1"), "other_sender"),
        (two_models, Complete("p>1", "p>1"), "other_sender"),
        (two_models, Complete("p>1", "p>0"), "no_such_update"),
    ],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
def test_invalid_command_raises_protocol_error(scene: Scene, command: Command, code: str) -> None:
    stage = Stage()
    scene(stage)
    with raises(ProtocolError, code):
        stage.say([command])


def test_worker_that_joins_twice_raises_protocol_error() -> None:
    stage = Stage()
    stage.tell(Joined("a"))
    with raises(ProtocolError, "node_joined_twice", node="a"):
        stage.tell(Joined("a"))


def test_update_used_by_two_commands_raises_protocol_error() -> None:
    stage = Stage()
    stage.arrived("a")
    with raises(ProtocolError, "no_such_update", update="a:1"):
        stage.say([Step({"a:1": 1.0}), Drop("a:1")])


def test_too_many_kept_versions_raise_protocol_error() -> None:
    """Each kept version is a complete model, so their number is limited on every engine."""
    stage = Stage()
    for number in range(MAX_KEPT):
        stage.say([Keep(number)])
        stage.say([Keep(number)])  # keeping a version twice does not count twice
        stage.arrived("a")
        stage.say([Step({f"a:{number + 1}": 1.0})])
    with raises(ProtocolError, "too_many_kept"):
        stage.say([Keep(MAX_KEPT)])
