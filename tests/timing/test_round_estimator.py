"""Round times are estimated only from rounds with updates of all workers."""

from collections.abc import Iterator, Mapping, Sequence

import pytest

from oddlot.core.commands import Abort, Action, Start, Step
from oddlot.core.events import AlarmFired, Arrived, Cancelled, Joined, Leaving, Lost, RoundTimesFitted
from oddlot.core.records import Record
from oddlot.core.sample_spans import Span
from oddlot.core.tasks import Facts, Task
from oddlot.timing.order_statistics import rounds_of
from oddlot.timing.response_times import Measured
from oddlot.timing.round_estimator import MAX_GROUPS, MIN_ROUNDS, SILENT, STEPS_BETWEEN, RoundEstimator

NAMES = "a", "b", "c"
LOADS = 2, 10
SLOWER: Mapping[str, float] = {"a": 1.0, "b": 2.0, "c": 6.0}


class Play:
    """Rounds of tasks with ten samples. A sample takes 0.1 s, and communication 1 s.

    `slower` has the factors of slow workers.
    """

    def __init__(self, names: Sequence[str] = NAMES) -> None:
        self.times = RoundEstimator(LOADS)
        self.names, self.now, self.made = names, 0.0, 0
        self.late: list[Task] = []
        for name in names:
            assert self.times(Record(0.0, Joined(name))) is None

    def round(
        self, answers: int, cancel: bool = True, slower: Mapping[str, float] = SLOWER
    ) -> RoundTimesFitted | None:
        """Run a round with `answers` updates. Return the estimate that is made when it closes."""
        for late in self.late:
            self.times(Record(self.now, Cancelled(late.id, late.node)))
        starts = [self._start(name) for name in self.names]
        self.times(Record(self.now, AlarmFired(), tuple(starts)))
        ordered = sorted(starts, key=lambda start: slower.get(start.task.node, 1.0))
        self.late = [start.task for start in ordered[answers:]]
        begun, shares = self.now, {start.task.id: 1.0 for start in ordered[:answers]}
        found = None
        for place, start in enumerate(ordered[:answers], 1):
            factor = slower.get(start.task.node, 1.0)
            self.now = begun + 2.0 * factor
            facts = Facts(
                start.task.id, start.task.node, 0, 10, seconds={"compute": 0.7 * factor, "load": 0.3 * factor}
            )
            actions: list[Action] = [Step(shares)] if place == answers else []
            if actions and cancel:
                actions += [Abort(late.task.id, late.task.node) for late in ordered[answers:]]
            found = self.times(Record(self.now, Arrived(facts), tuple(actions)))
        return found

    def _start(self, node: str) -> Start:
        self.made += 1
        return Start(Task(f"{node}:{self.made}", node, (Span(0, 0, 10),), 0))


def expected(slower: Sequence[float]) -> Iterator[tuple[int, int, float]]:
    """Yield (k, samples, seconds) for times without randomness."""
    for samples in LOADS:
        for k, factor in enumerate(sorted(slower), 1):
            yield k, samples, factor * (1.0 + 0.1 * samples)


def close(found: RoundTimesFitted | None, slower: Sequence[float]) -> None:
    assert found is not None
    for row, message in zip(found.rounds, expected(slower), strict=True):
        assert row[:2] == message[:2]
        assert row[2] == pytest.approx(message[2], rel=2e-3)


def test_rounds_with_a_cancelled_worker_are_ignored() -> None:
    """Such a round is ignored even if enough other workers have returned updates."""
    slower = {**SLOWER, "d": 1.0, "e": 1.0, "f": 1.0}
    play = Play([*slower])
    assert [play.round(5, slower=slower) for _ in range(3 * MIN_ROUNDS)] == [None] * (3 * MIN_ROUNDS)
    message = [play.round(6, slower=slower) for _ in range(MIN_ROUNDS)]
    close(message[-1], list(slower.values()))


def test_only_the_first_of_several_tasks_is_measured() -> None:
    """The second task waits for the end of the first task."""
    play, found = Play(["a"]), None
    for _ in range(MIN_ROUNDS):
        starts = [play._start("a"), play._start("a")]
        play.times(Record(play.now, AlarmFired(), tuple(starts)))
        for place, start in enumerate(starts):
            play.now += 2.0
            facts = Facts(start.task.id, "a", 0, 10, seconds={"compute": 1.0})
            found = play.times(Record(play.now, Arrived(facts), (Step({facts.id: 1.0}),) if place else ()))
    close(found, [1.0])


def test_unfinished_worker_counts_with_its_time_so_far() -> None:
    slower = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 6.0}
    play = Play([*slower])
    message = [play.round(3, cancel=False, slower=slower) for _ in range(MIN_ROUNDS)]
    assert message[-1] is not None
    rows = {row[:2]: row[2] for row in message[-1].rounds}
    assert rows[3, 10] == pytest.approx(6.0, rel=2e-3)
    assert rows[4, 10] == pytest.approx(6.0, rel=2e-3)


@pytest.mark.parametrize(("rounds", "seconds"), [(2, 12.0), (10, (3 * 12 + 14 + 16 + 18 + 20 + 22) / 8)])
def test_late_worker_counts_with_its_last_time_or_time_so_far(rounds: int, seconds: float) -> None:
    """A worker is busy with a cancelled task. It took 12 s before, and 4 s or 22 s so far: the longer time counts."""
    slower = {"a": 1.0, "b": 1.0, "d": 1.0, "c": 6.0}
    play = Play([*slower])
    for _ in range(MIN_ROUNDS):
        play.round(4, slower=slower)
    play.round(3, slower=slower)
    play.late, play.names = [], ["a", "b", "d"]
    for _ in range(rounds - 1):
        play.round(3, slower=slower)
    play.times(Record(play.now, Joined("a")))  # so that a new estimate is returned
    found = play.round(3, slower=slower)
    assert found is not None
    rows = {row[:2]: row[2] for row in found.rounds}
    assert rows[3, 10] == pytest.approx(2.0, rel=2e-3)
    assert rows[4, 10] == pytest.approx(seconds, rel=2e-3)


def test_rounds_with_many_late_workers_are_ignored() -> None:
    play = Play()
    for _ in range(3 * MIN_ROUNDS):
        assert play.round(1) is None
        assert play.round(2, cancel=False) is None


def test_estimate_repeats_after_some_steps_or_a_change_of_workers() -> None:
    play = Play()
    message = {step: found for step in range(1, 2 * STEPS_BETWEEN + 1) if (found := play.round(3))}
    assert [*message] == [MIN_ROUNDS, MIN_ROUNDS + STEPS_BETWEEN]
    close(message[MIN_ROUNDS], list(SLOWER.values()))
    play.times(Record(play.now, Lost("c")))
    play.names = NAMES[:2]
    close(play.round(2), [1.0, 2.0])


def test_finished_tasks_are_removed() -> None:
    play = Play()
    for number in range(20):
        play.round(3 if number % 2 else 1)
        play.times(Record(play.now, Lost("c")))
        play.times(Record(play.now, Joined("c")))
    assert len(play.times.started) <= 3
    assert len(play.times.cancelled) <= 3
    assert len(play.times.rounds) <= 8


def test_partial_task_of_a_leaving_worker_is_no_round() -> None:
    """The partial task arrives when the only worker is leaving."""
    play = Play(["a"])
    for _ in range(MIN_ROUNDS):
        play.round(1)
    start = play._start("a")
    play.times(Record(play.now, AlarmFired(), (start,)))
    play.times(Record(play.now, Leaving("a")))
    facts = Facts(start.task.id, "a", 0, 4, seconds={"compute": 0.4})
    assert play.times(Record(play.now, Arrived(facts), (Step({facts.id: 1.0}),))) is None


def test_hung_worker_does_not_block_the_estimate() -> None:
    play = Play(["a", "b"])
    play.names = ["a"]
    message = [play.round(1) is not None for _ in range(SILENT + MIN_ROUNDS)]
    assert message == [False] * (SILENT + MIN_ROUNDS - 2) + [True, False]


def test_old_rounds_are_discarded() -> None:
    play = Play()
    for _ in range(20):
        play.round(3)
    even = dict.fromkeys(NAMES, 3.0)
    for _ in range(STEPS_BETWEEN):
        play.round(1)
    for _ in range(7):
        play.round(3, slower=even)
    play.times.wait = 0
    close(play.round(3, slower=even), [3.0] * 3)


def test_workers_of_similar_speed_are_grouped() -> None:
    names = [f"w{number}" for number in range(3 * MAX_GROUPS)]
    slower = {name: 1.0 + 0.01 * place for place, name in enumerate(names)}
    play = Play(names)
    for _ in range(MIN_ROUNDS):
        found = play.round(len(names), slower=slower)
    assert found is not None
    exact = rounds_of([Measured((one,), (0.1 * one,)) for one in slower.values()], LOADS)
    for row, message in zip(found.rounds, exact, strict=True):
        assert row[:2] == message[:2]
        assert row[2] == pytest.approx(message[2], rel=0.02)
