"""What a machine of the simulator is doing when, to the second."""

from collections.abc import Callable
from math import inf
from statistics import fmean, stdev

import pytest

from oddlot.core import words as w
from oddlot.core.errors import JobError
from oddlot.core.spans import Span
from oddlot.engines.host import Arrival
from oddlot.engines.numbers import Shadow
from oddlot.engines.simulator import Simulator
from oddlot.machines.delays import Deterministic, Exponential
from oddlot.machines.machine import Lifetime, Link, Machine


class Maths(Shadow):
    """Notes what is computed."""

    def __init__(self) -> None:
        super().__init__(bytes_up=1000)
        self.computed: list[str] = []

    def compute(self, task: w.Task, weights: None) -> tuple[None, None]:
        self.computed.append(task.id)
        return None, None


class Stage:
    """One machine that takes 4 s for a task of four minibatches, and half a second for an answer."""

    def __init__(self) -> None:
        self.maths = Maths()
        link = Link(megabits_per_second=0.016)  # 2,000 bytes a second
        self.simulator = Simulator([Machine("m", seconds_per_sample=0.5, link=link)], self.maths, batch=2)
        assert self.simulator.next(inf) == w.Joined("m", 0.0)

    def start(self, *ids: str) -> None:
        for name in ids:
            self.simulator.start(w.Task(name, "m", (Span(0, 0, 8),), 0), None)

    def at(self, now: float) -> Simulator:
        """The simulator at this time, before which nothing must happen."""
        assert self.simulator.next(now) is None
        return self.simulator

    def heard(self) -> tuple[float, str, str]:
        """The next message: when, what, about which task."""
        message = self.simulator.next(inf)
        if isinstance(message, Arrival):
            return self.simulator.now, "answer", message.facts.id
        assert isinstance(message, w.Cancelled | w.Lost)
        return self.simulator.now, type(message).__name__, getattr(message, "task", "")


def test_tasks_are_computed_one_after_the_other_and_answers_travel_beside_that() -> None:
    stage = Stage()
    stage.start("a", "b")
    assert [stage.heard(), stage.heard()] == [(4.5, "answer", "a"), (8.5, "answer", "b")]


def test_a_machine_stops_before_its_next_minibatch() -> None:
    stage = Stage()
    stage.start("a", "b")
    stage.at(1.25).abort("a", "m")
    assert [stage.heard(), stage.heard()] == [(2.0, "Cancelled", "a"), (6.5, "answer", "b")]
    assert stage.maths.computed == ["b"]


def test_a_machine_in_its_last_minibatch_answers() -> None:
    stage = Stage()
    stage.start("a", "b")
    stage.at(3.25).abort("a", "m")
    assert [stage.heard(), stage.heard()] == [(4.5, "answer", "a"), (8.5, "answer", "b")]
    assert stage.maths.computed == ["b"], "nobody wants the answer of the first"


def test_a_task_that_waits_is_over_when_it_would_begin() -> None:
    stage = Stage()
    stage.start("a", "b", "c")
    stage.at(1.0).abort("b", "m")
    heard = [stage.heard() for _ in range(3)]
    assert heard == [(4.0, "Cancelled", "b"), (4.5, "answer", "a"), (8.5, "answer", "c")]


def test_an_answer_on_its_way_is_not_stopped() -> None:
    stage = Stage()
    stage.start("a")
    stage.at(4.25).abort("a", "m")
    assert stage.heard() == (4.5, "answer", "a")


def test_a_frozen_machine_goes_on_where_it_was() -> None:
    stage = Stage()
    stage.start("a", "b")
    stage.at(1.0).freeze("m")
    stage.at(11.0).thaw("m")
    assert [stage.heard(), stage.heard()] == [(14.5, "answer", "a"), (18.5, "answer", "b")]


def test_a_machine_becomes_slow_in_the_midst_of_a_task() -> None:
    stage = Stage()
    stage.start("a", "b")
    stage.at(2.0).slow("m", 3.0)
    assert stage.heard() == (10.5, "answer", "a"), "half of it at a quarter of the pace"
    stage.at(12.0).slow("m", 0.0)
    assert stage.heard() == (16.0, "answer", "b"), "half a minibatch at a quarter"


@pytest.mark.parametrize(
    ("slow_at", "leave_at", "samples", "at"),
    [(2.0, 2.5, 6, 6.5), (1.5, 1.25, 4, 4.0), (2.0, 6.5, 8, 10.5)],
    ids=["slow, then told", "told, then slow", "told at its last minibatch"],
)
def test_a_slow_machine_that_is_to_go_ends_its_minibatch(
    slow_at: float, leave_at: float, samples: int, at: float
) -> None:
    stage = Stage()
    stage.start("a")
    acts: dict[float, Callable[[], None]] = {slow_at: lambda: stage.simulator.slow("m", 3.0)}
    acts[leave_at] = lambda: stage.simulator.leave("m")
    for time, act in sorted(acts.items()):
        if (message := stage.simulator.next(time)) is not None:
            assert message == w.Leaving("m")
            stage.at(time)
        act()
    messages = [stage.simulator.next(inf) for _ in range(2 if leave_at > slow_at else 1)]
    assert isinstance(messages[-1], Arrival)
    assert (messages[-1].facts.samples, stage.simulator.now) == (samples, at)


def test_a_frozen_machine_becomes_slow_for_when_it_thaws() -> None:
    stage = Stage()
    stage.start("a")
    stage.at(1.0).freeze("m")
    stage.at(1.5).slow("m", 3.0)
    stage.at(3.0).thaw("m")
    assert stage.heard() == (15.5, "answer", "a")


def test_what_was_finished_before_a_machine_froze_arrives() -> None:
    stage = Stage()
    stage.start("a", "b")
    stage.at(4.25).freeze("m")
    assert stage.heard() == (4.5, "answer", "a")
    stage.at(10.25).thaw("m")
    assert stage.heard() == (14.5, "answer", "b")


def test_work_given_to_a_frozen_machine_begins_when_it_thaws() -> None:
    stage = Stage()
    stage.at(1.0).freeze("m")
    stage.start("a", "b")
    stage.at(10.0).thaw("m")
    assert [stage.heard(), stage.heard()] == [(14.5, "answer", "a"), (18.5, "answer", "b")]


def test_a_frozen_machine_hears_that_it_is_to_stop_when_it_thaws() -> None:
    stage = Stage()
    stage.start("a", "b")
    stage.at(1.25).freeze("m")
    stage.at(5.0).abort("a", "m")
    stage.at(10.0).thaw("m")
    assert [stage.heard(), stage.heard()] == [(10.75, "Cancelled", "a"), (15.25, "answer", "b")]


def lives(lifetime: float, tasks: int) -> Simulator:
    """A machine that gets as many tasks, each in its life, and lives no longer than that."""
    life = Lifetime(lifetime, Deterministic())
    machine = Machine("m", seconds_per_sample=0.5, lifetime=life, seconds_to_return=1.0)
    simulator = Simulator([machine], Maths(), batch=2)
    for number in range(tasks):
        joined = simulator.next(inf)
        assert isinstance(joined, w.Joined)
        simulator.start(w.Task(str(number), joined.node, (Span(0, 0, 8),), 0), None)
        while not isinstance(simulator.next(inf), w.Lost):
            pass
    return simulator


def test_a_fleet_that_never_lives_long_enough_for_a_task_is_given_up() -> None:
    with pytest.raises(
        JobError, match=r"^1,011 lives .* m\.1011, lived for 2 s, a task there computes for 4 s: .*"
    ):
        lives(2.0, 2_000)


def test_one_that_brings_something_is_not() -> None:
    assert lives(5.0, 2_000).lives.fruitless == 0


def test_a_lost_machine_computes_nothing_more_but_what_it_had_finished_arrives() -> None:
    stage = Stage()
    stage.start("a", "b")
    stage.at(4.25).kill("m")
    assert [stage.heard(), stage.heard()] == [(4.25, "Lost", ""), (4.5, "answer", "a")]
    assert stage.maths.computed == [], "it will be an echo"


class TestStopsAtOnce:
    """Papers on fastest-k have workers begin anew as soon as the k-th has answered."""

    def stage(self) -> Stage:
        stage = Stage()
        machine = Machine(
            "m", 0.5, link=Link(megabits_per_second=0.016, latency_milliseconds=1000), stops_at_once=True
        )
        stage.simulator = Simulator([machine], stage.maths, batch=2)
        assert stage.simulator.next(inf) == w.Joined("m", 0.0)
        return stage

    @pytest.mark.parametrize("now", [0.25, 1.75, 5.25, 6.0], ids=["down", "computing", "up", "later up"])
    def test_a_task_ends_wherever_it_is(self, now: float) -> None:
        """Down until 1.0, computed until 5.0, up until 6.5."""
        stage = self.stage()
        stage.start("a")
        stage.at(now).abort("a", "m")
        assert stage.heard() == (now, "Cancelled", "a")
        stage.start("b")
        assert stage.heard() == (now + 6.5, "answer", "b")
        assert stage.maths.computed == ["b"]

    def test_the_next_one_in_line_begins(self) -> None:
        stage = self.stage()
        stage.start("a", "b", "c")
        stage.at(2.0).abort("a", "m")
        assert [stage.heard() for _ in range(3)] == [
            (2.0, "Cancelled", "a"),
            (7.5, "answer", "b"),
            (11.5, "answer", "c"),
        ]

    def test_one_that_waits_is_gone_and_the_others_stay(self) -> None:
        stage = self.stage()
        stage.start("a", "b", "c")
        stage.at(2.0).abort("b", "m")
        assert [stage.heard() for _ in range(3)] == [
            (2.0, "Cancelled", "b"),
            (6.5, "answer", "a"),
            (10.5, "answer", "c"),
        ]

    def test_what_follows_does_not_begin_before_that(self) -> None:
        """The first one is on its way up."""
        stage = self.stage()
        stage.start("a", "b", "c")
        stage.at(6.0).abort("b", "m")
        assert [stage.heard() for _ in range(3)] == [
            (6.0, "Cancelled", "b"),
            (6.5, "answer", "a"),
            (11.5, "answer", "c"),
        ]

    def test_a_frozen_machine_does_not_hear_of_it(self) -> None:
        stage = self.stage()
        stage.start("a")
        stage.at(2.0).freeze("m")
        stage.at(3.0).abort("a", "m")
        stage.at(10.0).thaw("m")
        assert stage.heard()[0] >= 10.0

    def test_one_that_leaves_goes_when_its_last_task_is_cut_off(self) -> None:
        stage = self.stage()
        stage.start("a")
        stage.at(1.5).leave("m")
        assert isinstance(stage.simulator.next(inf), w.Leaving)
        stage.simulator.abort("a", "m")
        assert stage.heard() == (1.5, "Cancelled", "a")
        assert stage.heard()[:2] == (1.5, "Lost")


def test_a_link_scatters_by_one_factor_for_both_ways_of_a_task() -> None:
    stage = Stage()
    link = Link(megabits_per_second=0.016, latency_milliseconds=1000, delay=Exponential())
    stage.simulator = Simulator([Machine("m", 0.5, link=link)], stage.maths, batch=2)
    stage.simulator.next(inf)
    factors, now = list[float](), 0.0
    for number in range(400):
        stage.start(f"{number}")
        message = stage.simulator.next(inf)
        assert isinstance(message, Arrival)
        seconds = message.facts.seconds
        assert seconds["up"] == pytest.approx(1.5 * seconds["down"])
        assert stage.simulator.now - now == pytest.approx(4.0 + 2.5 * seconds["down"])
        factors.append(seconds["down"])
        now = stage.simulator.now
    assert fmean(factors) == pytest.approx(1.0, rel=0.15)
    assert stdev(factors) == pytest.approx(1.0, rel=0.2)
