"""Round trips of events, commands and actions through JSON."""

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from oddlot import FastestK, LocalSGD
from oddlot.core import optimizers as rules, sample_spans
from oddlot.core.commands import Action, Command
from oddlot.core.events import Event, NewSegment, Stimulus
from oddlot.core.records import Record
from oddlot.core.support.serialization import MOST, Misfit, from_plain, to_plain
from oddlot.core.tasks import Facts, Task
from oddlot.strategies import registry
from tests.transcripts import raises

share = st.floats(0, 0.99)
above_zero = st.floats(1e-300, 0.99)
RULES = {
    rules.SGD: st.builds(rules.SGD, share, above_zero, st.booleans(), share),
    rules.Adam: st.builds(rules.Adam, share, st.tuples(share, share), above_zero, share),
    rules.AdamW: st.builds(rules.AdamW, share, st.tuples(share, share), above_zero, share),
}
"""Strategies for optimizers with valid settings."""
whole = st.integers(1 - MOST, MOST - 1)
st.register_type_strategy(int, whole)
plain = st.recursive(st.none() | st.text() | whole, lambda part: st.dictionaries(st.text(), part, max_size=3))
st.register_type_strategy(
    NewSegment, st.builds(NewSegment, st.dictionaries(st.text(), plain, max_size=3), whole, st.booleans())
)
WORDS = [*get_args(Stimulus), *get_args(Action), *get_args(Command)]
PARTS = [Task, Facts, Record, *RULES]


def through_json(kind: Any, value: Any) -> Any:
    return from_plain(kind, json.loads(json.dumps(to_plain(value))))


def test_numpy_numbers_become_python_numbers() -> None:
    found = to_plain([np.int64(3), np.float32(0.5), np.float64(0.25)])
    assert found == [3, 0.5, 0.25]
    assert [type(number) for number in found] == [int, float, float]
    assert FastestK(k=np.int64(2)).k == 2  # type: ignore[arg-type]  # accepted as an int


@pytest.mark.parametrize("kind", [*dict.fromkeys([*WORDS, *PARTS])], ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_record_type_round_trips_through_json(kind: type, data: st.DataObject) -> None:
    value = data.draw(RULES[kind] if kind in RULES else st.from_type(kind))
    assume("nan" not in repr(value))  # NaN does not equal itself
    back = through_json(kind, value)
    assert back == value
    assert json.dumps(to_plain(back)) == json.dumps(to_plain(value))  # distinguishes 1 from 1.0


@pytest.mark.parametrize("union", [Stimulus, Action, Command, rules.Optimizer])
@given(data=st.data())
def test_union_members_round_trip_with_their_type(union: Any, data: st.DataObject) -> None:
    value = data.draw(st.one_of(*RULES.values()) if union is rules.Optimizer else st.from_type(union))
    assume("nan" not in repr(value))
    back = through_json(union, value)
    assert (type(back), back) == (type(value), value)


@pytest.mark.parametrize("make", registry.BY_NAME.values())
def test_every_strategy_round_trips(make: type) -> None:
    assert through_json(make, make()) == make()


def test_settings_and_state_round_trip() -> None:
    strategy = LocalSGD(steps=3, server=rules.SGD(lr=0.7, momentum=0.9, nesterov=True), round={"a:1": 4})
    assert through_json(LocalSGD, strategy) == strategy


@dataclass(frozen=True)
class Own(rules.Optimizer):
    lr: float = 0.1
    cuts: tuple[int, ...] = (1, 2)


def test_custom_optimizer_round_trips_in_a_strategy() -> None:
    strategy = LocalSGD(server=Own(cuts=(3,)))
    assert through_json(LocalSGD, strategy) == strategy


def test_unknown_type_raises_misfit() -> None:
    with raises(Misfit):
        from_plain(rules.Optimizer, {"is": "Span", "lr": 0.1})
    with raises(Misfit):
        from_plain(Event, {"is": "Sung", "node": "a"})


@pytest.mark.parametrize("value", [Random(1), {1, 2}, lambda: 0, object()])
def test_unserializable_value_raises_type_error(value: object) -> None:
    with raises(TypeError):
        to_plain({"state": [value]})


@dataclass
class Nested:
    by_name: dict[str, list[sample_spans.Span]] = field(default_factory=dict)
    maybe: Task | None = None
    pair: tuple[int, float] = (1, 2.0)
    rule: rules.Optimizer | None = None


def test_containers_keep_their_types() -> None:
    task = Task("a:1", "a", (sample_spans.Span(0, 1, 2), sample_spans.Span(0, 4, 5)), 3)
    value = Nested({"x": [sample_spans.Span(1, 2, 3)]}, task, (4, 5.0), rules.Adam(betas=(0.5, 0.6)))
    assert repr(through_json(Nested, value)) == repr(value)
    assert repr(through_json(Nested, Nested())) == repr(Nested())


def test_default_none_fields_are_left_out() -> None:
    """Fields that are None by default are left out, so logs stay small. Data with an explicit None can still be
    read."""
    task = Task("a:1", "a", (sample_spans.Span(0, 1, 2),), 3)
    assert to_plain(task) == {
        "is": "Task", "id": "a:1", "node": "a", "spans": [[0, 1, 2]], "version": 3, "kind": "gradient"
    }  # fmt: skip
    older = to_plain(task) | {"pull": None}
    assert from_plain(Task, older) == from_plain(Task, to_plain(task)) == task
    assert to_plain(Facts("a:1", "a", 3, 1, loss=None))["samples"] == 1
