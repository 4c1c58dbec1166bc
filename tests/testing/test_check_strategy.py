"""`check_strategy` finds strategies that break a promise, and reports a short scenario."""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from oddlot.core import conductor as state
from oddlot.core.commands import Abort, Command, Drop, Step, Wake
from oddlot.core.events import Arrived, Event, Lost
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.strategy import Strategy, View, assign_all, assign_idle
from oddlot.strategies import Asynchronous, FastestK, Synchronous
from oddlot.testing import BrokenPromise, check_strategy, run_story
from tests.transcripts import transcribe


class ForgetsTheLost(FastestK):
    def on(self, event: Event, view: View) -> Iterable[Command]:
        return () if isinstance(event, Lost) else super().on(event, view)


@dataclass
class Moody(Strategy):
    """A strategy that uses the global random number generator."""

    def on(self, event: Event, view: View) -> Iterable[Command]:
        if isinstance(event, Arrived):
            yield Step({event.update.id: random.choice([0.5, 1.0])})
        yield from assign_idle(view, view.batch)


@dataclass
class Gossiping(Strategy):
    """A strategy with copies that share a count."""

    message: ClassVar[list[int]] = []

    def on(self, event: Event, view: View) -> Iterable[Command]:
        if isinstance(event, Arrived):
            self.message.append(1)
            yield Step({event.update.id: 1 / len(self.message)})
        yield from assign_idle(view, view.batch)


@dataclass
class KeepsASecret(Strategy):
    """A strategy with state outside of its fields."""

    def __post_init__(self) -> None:
        self.count = 0

    def on(self, event: Event, view: View) -> Iterable[Command]:
        if isinstance(event, Arrived):
            self.count += 1
            yield Step({event.update.id: 1 / self.count})
        yield from assign_idle(view, view.batch)


@dataclass
class KeepsAGenerator(Strategy):
    script: Iterator[int] = field(default_factory=lambda: iter(range(10)))

    def on(self, event: Event, view: View) -> Iterable[Command]:
        return assign_idle(view, view.batch)


@dataclass
class CountsByNumber(Strategy):
    """A strategy with integer keys in a dict: JSON turns them into strings."""

    seen: dict[int, int] = field(default_factory=dict)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        if isinstance(event, Arrived):
            self.seen[view.version] = 1
            yield Step({event.update.id: 1.0})
        yield from assign_idle(view, view.batch)


@dataclass
class NeverMerges(Strategy):
    def on(self, event: Event, view: View) -> Iterable[Command]:
        return assign_idle(view, view.batch)


@dataclass
class DropsAll(Strategy):
    def on(self, event: Event, view: View) -> Iterable[Command]:
        if isinstance(event, Arrived):
            yield Drop(event.update.id)
        yield from assign_all(view, view.batch)


@dataclass
class WaitsForEver(Strategy):
    """A strategy that only sets alarms."""

    def on(self, event: Event, view: View) -> Iterable[Command]:
        yield Wake(view.now + 1.0)


@dataclass
class MergesTwice(Strategy):
    last: str = ""

    def on(self, event: Event, view: View) -> Iterable[Command]:
        if isinstance(event, Arrived):
            yield Step(dict.fromkeys([event.update.id, *[self.last] * bool(self.last)], 0.5))
            self.last = event.update.id
        yield from assign_idle(view, view.batch)


def fault_of(make: Callable[[], Strategy], examples: int) -> tuple[int, str]:
    """Return the number of the broken promise, and the code of the accounting error."""
    with pytest.raises(BrokenPromise) as caught:
        check_strategy(make, examples=examples)
    return caught.value.promise, caught.value.code


BROKEN: list[tuple[Callable[[], Strategy], int]] = [
    (lambda: ForgetsTheLost(k=2), 4),
    (Moody, 1),
    (Gossiping, 1),
    (KeepsASecret, 2),
    (KeepsAGenerator, 2),
    (CountsByNumber, 2),
    (NeverMerges, 5),
    (DropsAll, 5),
    (WaitsForEver, 5),
    (MergesTwice, 6),
]


SLOW = (KeepsASecret,)
"""Strategies that take 10 s, and run in `make test-long`.

`KeepsAGenerator` and `CountsByNumber` break the same promise.
"""


@pytest.mark.parametrize(
    ("make", "promise"),
    [pytest.param(*each, marks=pytest.mark.long if each[0] in SLOW else ()) for each in BROKEN],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_broken_promise_is_found(make: Callable[[], Strategy], promise: int) -> None:
    assert fault_of(make, 100) == (promise, "")


def test_shortest_history_is_reported_as_a_story() -> None:
    with pytest.raises(BrokenPromise) as caught:
        check_strategy(lambda: ForgetsTheLost(k=2), examples=100)
    story = caught.value.story
    assert caught.value.promise == 4
    transcribe(str(caught.value).removesuffix(story))
    assert story.splitlines() == [
        "strategy ForgetsTheLost(k=2, samples=None, round={})",
        "data size=1 epochs=1 in_flight=1 batch=4 shards=1 skip_bad=true",
        "join a",
        "> assign a:1 1 [0:0-1] v0",
        "join b",
        "lose a",
        "show",
        "> version 0, epoch 0, idle b, open -, owed -, inbox -, returned [0:0-1]",
    ]
    assert run_story(story, {"ForgetsTheLost": ForgetsTheLost}) == story + "\n"


def test_state_lost_by_copying_is_found() -> None:
    with pytest.raises(BrokenPromise) as caught:
        check_strategy(CountsByNumber, examples=100)
    lines = caught.value.story.splitlines()
    assert lines[1].startswith("data size=1 epochs=1 ")
    assert [line for line in lines[2:] if not line.startswith(">")] == ["join a", "finish a:1", "show"]


def test_exception_has_its_history_as_a_note() -> None:
    class Typo(Synchronous):
        def on(self, event: Event, view: View) -> Iterable[Command]:
            if isinstance(event, Lost):
                raise KeyError(event.node)
            return super().on(event, view)

    with pytest.raises(KeyError) as caught:
        check_strategy(Typo, examples=100)
    notes = "\n".join(caught.value.__notes__)
    assert "join a\n> assign a:1 1 [0:0-1] v0\nlose a\n" in notes


def shown(
    message: Callable[[Any, Arrived], Iterable[Event]],
) -> Callable[[Any, Arrived], Iterator[Event]]:
    def settle(conductor: state.Conductor, event: Arrived) -> Iterator[Event]:
        yield from message(conductor, event)

    return settle


def test_conductor_that_reports_late_updates_of_lost_workers_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def deliver_all(conductor: state.Conductor, event: Arrived) -> Iterator[Event]:
        events = [each for each in state.Conductor._arrived(conductor, event) if not isinstance(each, Abort)]
        yield from events or ([] if event.update.sender in conductor.busy else [event])

    @dataclass
    class Remembers(Synchronous):
        late: int = 0

        def on(self, event: Event, view: View) -> Iterable[Command]:
            if isinstance(event, Arrived) and event.update.sender not in view.worker_stats.members:
                self.late += 1
                return ()
            return super().on(event, view)

    monkeypatch.setitem(state._SETTLE, Arrived, deliver_all)
    assert fault_of(Remembers, 200) == (3, "")


def test_ledger_that_loses_samples_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SampleLedger, "give_back", lambda ledger, task: ledger.leases.pop(task, None))
    assert fault_of(Asynchronous, 100) == (0, "position_missing")


def test_ledger_that_merges_twice_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def merge(ledger: SampleLedger, update: str) -> bool:
        spans = ledger.leases[update].spans
        ledger.give_back(update)
        return ledger._count(spans)

    monkeypatch.setattr(SampleLedger, "merge", merge)
    assert fault_of(Asynchronous, 100) == (0, "position_repeated")


def test_conductor_that_forgets_an_idle_worker_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = state.Conductor._answered

    def forgets_idle(conductor: state.Conductor, task: str, node: str, samples: int) -> bool:
        known = answered(conductor, task, node, samples)
        conductor.idle.pop(node, None)
        return known

    monkeypatch.setattr(state.Conductor, "_answered", forgets_idle)
    assert fault_of(Asynchronous, 100) == (0, "wrong_idle")
