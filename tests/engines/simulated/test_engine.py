"""Tests of the simulator with one machine: exact times of updates, cancelled tasks, faults and losses."""

from dataclasses import replace
from math import inf
from statistics import fmean, stdev
from typing import Any

import pytest

from oddlot.core.events import Joined, Lost
from oddlot.core.sample_spans import Span
from oddlot.core.support.errors import JobError
from oddlot.core.tasks import Task, TaskLoss
from oddlot.engines.host import Message, ReceivedUpdate
from oddlot.engines.simulated.compute import NullComputation
from oddlot.engines.simulated.engine import SimulatedHub
from oddlot.machines.delay_models import Deterministic, Exponential
from oddlot.machines.machine import Lifetime, Link, Machine
from tests.transcripts import raises


class Noted(NullComputation):
    """A computation without a model that records the ids of its tasks."""

    def __init__(self) -> None:
        super().__init__(bytes_up=1000)
        self.computed: list[str] = []

    def compute(self, task: Task, weights: None) -> tuple[TaskLoss, None]:
        self.computed.append(task.id)
        return TaskLoss(), None


Heard = tuple[float, str, str]
LINK = Link(megabits_per_second=0.016)  # 2,000 bytes per second


class Stage:
    """A simulator with one machine. A task of four minibatches takes 4 s, and sending its update takes 0.5 s."""

    def __init__(self, link: Link = LINK, **settings: Any) -> None:
        self.noted = Noted()
        machine = Machine("m", seconds_per_sample=0.5, link=link, **settings)
        self.simulator = SimulatedHub([machine], self.noted, batch=2)
        self.messages: list[Message] = []
        self.heard: list[Heard] = []
        """Time, kind and task of each message."""
        assert self.simulator.next(inf) == Joined("m", 0.0)

    def start(self, *ids: str) -> None:
        for name in ids:
            self.simulator.start(Task(name, "m", (Span(0, 0, 8),), 0), None)

    def do(self, time: float, verb: str, *arguments: Any) -> None:
        """Call a method of the simulator at `time`, after all earlier messages."""
        while self.hear(time):
            pass
        arguments = (*arguments, "m") if verb == "abort" else ("m", *arguments)
        getattr(self.simulator, verb)(*arguments)

    def hear(self, until: float = inf) -> Message | None:
        """Return the next message before `until`, and record it."""
        message = self.simulator.next(until)
        if message is not None:
            self.messages.append(message)
            task = message.facts.id if isinstance(message, ReceivedUpdate) else getattr(message, "task", "")
            what = "answer" if isinstance(message, ReceivedUpdate) else type(message).__name__
            self.heard.append((self.simulator.now, what, task))
        return message


def plays(stage: Stage, tasks: str, acts: list[tuple[Any, ...]], heard: list[Heard]) -> None:
    """Start `tasks`, perform `acts`, and check that the first messages are `heard`."""
    stage.start(*tasks)
    for act in acts:
        stage.do(*act)
    while len(stage.heard) < len(heard):
        stage.hear()
    assert stage.heard == heard


def answers(*times: float, tasks: str = "abc") -> list[Heard]:
    return [(time, "answer", task) for time, task in zip(times, tasks, strict=False)]


SCENES: dict[str, tuple[str, list[tuple[Any, ...]], list[Heard]]] = {
    "one task after the other, and answers travel beside that": ("ab", [], answers(4.5, 8.5)),
    "it stops before its next minibatch": (
        "ab",
        [(1.25, "abort", "a")],
        [(2.0, "Cancelled", "a"), (6.5, "answer", "b")],
    ),
    "in its last minibatch it answers": ("ab", [(3.25, "abort", "a")], answers(4.5, 8.5)),
    "a task that waits is over when it would begin": (
        "abc",
        [(1.0, "abort", "b")],
        [(4.0, "Cancelled", "b"), *answers(4.5, 8.5, tasks="ac")],
    ),
    "an answer on its way is not stopped": ("a", [(4.25, "abort", "a")], answers(4.5)),
    "frozen, it goes on where it was": ("ab", [(1.0, "freeze"), (11.0, "thaw")], answers(14.5, 18.5)),
    "half of a task at a quarter of the pace, and half a minibatch": (
        "ab",
        [(2.0, "slow", 3.0), (12.0, "slow", 0.0)],
        answers(10.5, 16.0),
    ),
    "frozen, it becomes slow for when it thaws": (
        "a",
        [(1.0, "freeze"), (1.5, "slow", 3.0), (3.0, "thaw")],
        answers(15.5),
    ),
    "what was finished before it froze arrives": (
        "ab",
        [(4.25, "freeze"), (10.25, "thaw")],
        answers(4.5, 14.5),
    ),
    "frozen, it hears that it is to stop when it thaws": (
        "ab",
        [(1.25, "freeze"), (5.0, "abort", "a"), (10.0, "thaw")],
        [(10.75, "Cancelled", "a"), (15.25, "answer", "b")],
    ),
}


@pytest.mark.parametrize("scene", SCENES)
def test_machine_runs_tasks_on_schedule(scene: str) -> None:
    stage, (tasks, acts, heard) = Stage(), SCENES[scene]
    plays(stage, tasks, acts, heard)
    unwanted = {argument for _, verb, *arguments in acts if verb == "abort" for argument in arguments}
    assert stage.noted.computed == [
        task for _, what, task in heard if what == "answer" and task not in unwanted
    ]


def test_cancellation_takes_link_time() -> None:
    """The request takes 1 s and arrives at 1.5 s, in the first minibatch. The reply takes 1 s too."""
    stage = Stage(replace(LINK, latency_milliseconds=1000))
    plays(stage, "a", [(0.5, "abort", "a")], [(3.0, "Cancelled", "a")])


def test_lost_machine_delivers_only_finished_updates() -> None:
    stage = Stage()
    plays(stage, "ab", [(4.25, "kill")], [(4.25, "Lost", ""), (4.5, "answer", "a")])
    assert stage.noted.computed == [], "it will be an echo"


def test_tasks_of_a_frozen_machine_start_when_it_thaws() -> None:
    stage = Stage()
    stage.do(1.0, "freeze")
    plays(stage, "ab", [(10.0, "thaw")], answers(14.5, 18.5))


@pytest.mark.parametrize(
    ("acts", "samples", "at"),
    [
        ([(2.0, "slow", 3.0), (2.5, "leave")], 6, 6.5),
        ([(1.25, "leave"), (1.5, "slow", 3.0)], 4, 4.0),
        ([(2.0, "slow", 3.0), (6.5, "leave")], 8, 10.5),
    ],
    ids=["slow, then told", "told, then slow", "told at its last minibatch"],
)
def test_slow_machine_finishes_its_minibatch_before_it_leaves(
    acts: list[tuple[Any, ...]], samples: int, at: float
) -> None:
    stage = Stage()
    message = next(time for time, verb, *_ in acts if verb == "leave")
    plays(stage, "a", acts, [(message, "Leaving", ""), (at, "answer", "a")])
    assert isinstance(stage.messages[-1], ReceivedUpdate)
    assert stage.messages[-1].facts.samples == samples


AT_ONCE: dict[str, tuple[str, list[tuple[Any, ...]], list[Heard]]] = {
    "the next one in line begins": (
        "abc",
        [(2.0, "abort", "a")],
        [(2.0, "Cancelled", "a"), *answers(7.5, 11.5, tasks="bc")],
    ),
    "one that waits is gone, and the others stay": (
        "abc",
        [(2.0, "abort", "b")],
        [(2.0, "Cancelled", "b"), *answers(6.5, 10.5, tasks="ac")],
    ),
    "what follows does not begin before that, while the first is on its way up": (
        "abc",
        [(6.0, "abort", "b")],
        [(6.0, "Cancelled", "b"), *answers(6.5, 11.5, tasks="ac")],
    ),
    "one that leaves goes when its last task is cut off": (
        "a",
        [(1.5, "leave"), (1.5, "abort", "a")],
        [(1.5, "Leaving", ""), (1.5, "Cancelled", "a"), (1.5, "Lost", "")],
    ),
}


class TestStopsAtOnce:
    """Tests of `stops_at_once`: in papers on fastest-k, workers restart as soon as the k-th update has arrived."""

    def stage(self) -> Stage:
        """Return a stage with a task that downloads until 1.0 s, computes until 5.0 s and uploads until 6.5 s."""
        return Stage(replace(LINK, latency_milliseconds=1000), stops_at_once=True)

    @pytest.mark.parametrize("scene", AT_ONCE)
    def test_cancelled_task_stops_at_once_despite_queued_tasks(self, scene: str) -> None:
        plays(self.stage(), *AT_ONCE[scene])

    @pytest.mark.parametrize("now", [0.25, 1.75, 5.25, 6.0], ids=["down", "computing", "up", "later up"])
    def test_cancelled_task_stops_in_every_phase(self, now: float) -> None:
        stage = self.stage()
        plays(stage, "a", [(now, "abort", "a")], [(now, "Cancelled", "a")])
        plays(stage, "b", [], [(now, "Cancelled", "a"), (now + 6.5, "answer", "b")])
        assert stage.noted.computed == ["b"]

    def test_frozen_machine_cancels_only_after_it_thaws(self) -> None:
        stage = self.stage()
        plays(stage, "a", [(2.0, "freeze"), (3.0, "abort", "a"), (10.0, "thaw")], [])
        stage.hear()
        assert stage.heard[0][0] >= 10.0


def lost_after(lifetime: float, tasks: int) -> SimulatedHub:
    """Return a simulator after `tasks` losses of a machine, each `lifetime` seconds after it joined with a task."""
    life = Lifetime(lifetime, Deterministic())
    machine = Machine("m", seconds_per_sample=0.5, lifetime=life, seconds_to_return=1.0)
    simulator = SimulatedHub([machine], Noted(), batch=2)
    for number in range(tasks):
        joined = simulator.next(inf)
        assert isinstance(joined, Joined)
        simulator.start(Task(str(number), joined.node, (Span(0, 0, 8),), 0), None)
        while not isinstance(simulator.next(inf), Lost):
            pass
    return simulator


def test_lifetimes_too_short_for_a_task_end_the_run() -> None:
    with raises(JobError, "lifetimes_too_short", workers=1011, node="m.1011", lived=2.0, needs=4.0):
        lost_after(2.0, 2_000)


def test_lifetimes_longer_than_a_task_do_not_end_the_run() -> None:
    assert lost_after(5.0, 2_000).lifecycle.progress.lost_workers == 0


def test_link_delay_is_drawn_once_per_task() -> None:
    stage = Stage(replace(LINK, latency_milliseconds=1000, delay=Exponential()))
    factors, now = list[float](), 0.0
    for number in range(400):
        stage.start(f"{number}")
        message = stage.simulator.next(inf)
        assert isinstance(message, ReceivedUpdate)
        seconds = message.facts.seconds
        assert seconds["up"] == pytest.approx(1.5 * seconds["down"])
        assert stage.simulator.now - now == pytest.approx(4.0 + 2.5 * seconds["down"])
        factors.append(seconds["down"])
        now = stage.simulator.now
    assert fmean(factors) == pytest.approx(1.0, rel=0.15)
    assert stdev(factors) == pytest.approx(1.0, rel=0.2)


def test_upload_time_uses_the_last_update_size() -> None:
    stage = Stage()
    stage.start("a")
    stage.hear()
    stage.noted.bytes_up = 4000  # its codec needs more bytes now
    stage.start("b")
    stage.hear()
    assert [time for time, _, _ in stage.heard] == [4.5, 4.5 + 4 + 2]
