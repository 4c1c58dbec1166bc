"""Quorum: which workers a round waits for, how long, and the shares of their updates."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import oddlot
from oddlot import (
    SGD,
    BackupTasks,
    Deadline,
    LocalSGD,
    Machine,
    ProportionalLoad,
    Quorum,
    Simulated,
    Strategy,
    Synchronous,
)
from oddlot.core.commands import Command, HandOver, Start, Step
from oddlot.core.events import Event
from oddlot.core.strategy import Traits, View, assign_idle
from oddlot.core.strategy_wrapper import StrategyWrapper
from oddlot.core.support.errors import ProtocolError, UsageError
from oddlot.machines import Link
from oddlot.testing import run_story
from oddlot.testing.run_scenario import Data, ScenarioRun
from tests.fits import BATCH, a_job, trained
from tests.strategies.slow_fleets import PACE, actions, machines, ran
from tests.transcripts import raises, warns

ONE_IS_LATE = """data size=100 in_flight=1 batch=4
join a
join b
wait 1
finish a
wait alarm
finish b
wait 1
finish a
wait alarm
"""


def test_local_sgd_does_not_wait_for_a_straggler() -> None:
    """Other workers merge without a worker that is a hundred times slower, and its late updates are merged, too."""
    run = ran(Quorum(LocalSGD(steps=4)), machines(4, 100.0), torch.zeros(40_000), "seconds>=900")
    waits = ran(LocalSGD(steps=4), machines(4, 100.0), torch.zeros(40_000), "seconds>=900")
    assert run.summary["samples_merged"] > 2.5 * waits.summary["samples_merged"]
    merged = {update.rpartition(":")[0] for step in actions(run, Step) for update in step.shares}
    assert merged == {"m0", "m1", "m2", "m3"}
    idle = 1 - run.summary["samples_merged"] * PACE / (3.01 * run.summary["seconds"])
    assert idle < 0.06, "the windows of grace"


@pytest.mark.parametrize(
    "inside",
    [
        LocalSGD(steps=3, server=SGD(0.7, 0.9, nesterov=True)),
        ProportionalLoad(LocalSGD(steps=3)),
        Deadline(LocalSGD(steps=3), seconds=1.2),
        Synchronous(samples=9),
    ],
    ids=repr,
)
def test_quorum_of_all_workers_matches_the_inner_strategy(inside: Strategy) -> None:
    """A quorum of 1.0 has the same tasks, optimizer and shares as the inner strategy if all minibatches are
    complete."""
    one, other = (
        ran(strategy, machines(3), torch.arange(90.0), "epochs>=2", lr=0.1)
        for strategy in (inside, Quorum(inside, quorum=1.0))
    )
    assert actions(one, Start) == actions(other, Start)
    shares = [[step.shares for step in actions(run, Step)] for run in (one, other)]
    assert shares[0] == [pytest.approx(each) for each in shares[1]]
    weights = [run.model.get_parameter("weight").item() for run in (one, other)]
    assert weights[0] == pytest.approx(weights[1])


def test_gradients_are_weighted_by_samples() -> None:
    """Partial updates count by their samples, too. The next round merges a late update."""
    story = """strategy Quorum(Synchronous(samples=8), quorum=0.6, grace=0.0)
data size=100 in_flight=1 batch=4
join a
join b
join c
wait 1
finish a
finish b samples=2
wait alarm
finish c
"""
    message = run_story(story)
    assert "> step a:1*0.80 b:2*0.20" in message
    assert message.endswith("finish c\n> assign c:6 8 [0:34-42] v1\n"), message
    later = run_story(f"{story}wait 1\nfinish a\nfinish b\nwait alarm\n")
    assert "> step c:3*0.17 a:4*0.33 b:5*0.33" in later, later


@dataclass
class Never(Strategy):
    """A strategy with `waits_for_all` and without steps."""

    def traits(self, batch_size: int) -> Traits:
        return Traits(waits_for_all=True)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        return assign_idle(view, 4)


def test_inner_strategy_without_steps_raises_protocol_error() -> None:
    with raises(ProtocolError, "inner_steps_by_part", inner="Never"):
        ran(Quorum(Never()), machines(3), torch.zeros(40), "epochs>=1")


def test_frozen_workers_do_not_block_rounds() -> None:
    """If two of four workers freeze forever and another worker is slow, rounds continue after timeouts.

    Half of the remaining two workers are enough.
    """
    chaos = oddlot.faults.Chaos(
        [oddlot.faults.Fault("freeze", name, at_seconds=(30.0,)) for name in ("m0", "m1")]
    )

    def steps(misfortune: oddlot.faults.Chaos | None) -> int:
        fleet = machines(4, 100.0)
        run = ran(
            Quorum(LocalSGD(steps=8), grace=0.0),
            fleet,
            torch.zeros(20_000),
            "seconds>=1100",
            chaos=misfortune,
        )
        times = [record.now for record in run.records if any(isinstance(one, Step) for one in record.actions)]
        return sum(time > 700 for time in times)

    with warns("worker_hung"):
        silent = steps(chaos)
    assert silent > 0.9 * steps(None)


A_HAS_A_COPY = """strategy BackupTasks(Quorum(LocalSGD(steps=1), quorum=0.6, grace=0.0))
data size=100 batch=4
join a
join b
join c
join d
wait 1
finish a
finish b
finish c
finish d
wait 1
finish a
wait alarm
"""
"""A scenario: a has a copy of b's task, and has sent an update in this round."""


@pytest.mark.parametrize(("at_once", "who_come_back"), [(1, ""), (2, "late b\nlate c")])
def test_unacknowledged_cancellation_does_not_block_the_quorum(at_once: int, who_come_back: str) -> None:
    """If `a` freezes with a copy of a task that `b` finishes, two of the three other workers are a quorum."""
    story = f"""{A_HAS_A_COPY.replace("batch=4", f"batch=4 in_flight={at_once}")}finish c
finish d
finish b
{who_come_back}
finish b
finish d
"""
    message = run_story(story)
    assert "finish b\n> abort a:9\n" in message, message
    assert "> step" not in message.partition("> abort a:9")[2].partition("finish d")[0], message
    assert re.search(r"finish d\n> step b:6\*0.17 b:1\d\*0.33 d:1\d\*0.33\n", message), message


def test_worker_with_an_update_and_a_cancelled_copy_counts() -> None:
    """A worker with an update in this round counts despite its aborted copy: three of four workers are a quorum."""
    message = run_story(A_HAS_A_COPY + "finish b\nfinish c\n")
    assert "finish b\n> abort a:9\n" in message, message
    assert "> step" not in message.partition("> abort a:9")[2].partition("finish c")[0], message
    assert "finish c\n> step d:4*0.12 a:5*0.25 b:6*0.25 c:7*0.25\n" in message, message


def test_workers_hold_one_task_at_a_time() -> None:
    """Two tasks of a worker would start from the same version and count as two workers."""
    machines = [Machine(f"m{number}", 0.01, link=Link(latency_milliseconds=20)) for number in range(3)]
    one, two = (
        trained(
            a_job(count=480), Quorum(LocalSGD(steps=2)), Simulated(machines, in_flight=at_once), "epochs>=2"
        )[0]
        for at_once in (1, 2)
    )
    assert one.summary["versions"] == two.summary["versions"] == 2 * 480 / (3 * 2 * BATCH)


def test_leaving_worker_does_not_count_in_the_quorum() -> None:
    """If one of three workers leaves after its update, the round waits for the other two."""
    story = """strategy Quorum(LocalSGD(steps=1), quorum=1.0, grace=9.0)
data size=100 in_flight=1 batch=4
join a
join b
join c
finish a
leave a
finish b
finish c
"""
    assert "> step a:1*0.33 b:2*0.33 c:3*0.33" in run_story(story)


def test_grace_is_a_share_of_the_working_time() -> None:
    story = """strategy Quorum(LocalSGD(steps=1), grace=0.5)
data size=100 in_flight=1 batch=4
wait 3600
join a
join b
wait 10
finish a
wait alarm
"""
    assert "at 3615 s\n> step a:1*1.00" in run_story(story)


def test_stale_update_has_a_lower_share() -> None:
    """A staleness of one version halves the share.

    Without damping, stale updates and momentum make the model oscillate.
    """
    story = f"strategy Quorum(LocalSGD(steps=1), grace=0.0)\n{ONE_IS_LATE}"
    assert "> step b:2*0.25 a:3*0.50" in run_story(story), run_story(story)


def test_damping_sets_the_share_of_stale_updates() -> None:
    """Damping of 0 keeps the share of a stale update, and damping of 2 divides it by four.

    A round with grace ends as soon as every worker has reported.
    """
    story = f"strategy Quorum(LocalSGD(steps=1), grace=0.0, damping={{}})\n{ONE_IS_LATE}"
    assert "> step b:2*0.50 a:3*0.50" in run_story(story.format(0.0))
    assert "> step b:2*0.12 a:3*0.50" in run_story(story.format(2.0))
    whole = (
        "strategy Quorum(LocalSGD(steps=1), grace=9.0)\ndata size=100 in_flight=1 batch=4\njoin a\njoin b\n"
    )
    assert "finish b\n> step a:1*0.50 b:2*0.50" in run_story(f"{whole}wait 1\nfinish a\nfinish b\n")
    assert "finish a\n> step a:1*1.00" in run_story(f"{whole}wait 1\nleave b\nfinish a\n"), (
        "who leaves is none"
    )


def test_update_of_a_leaving_worker_does_not_count_in_the_quorum() -> None:
    """The quorum is two of the three remaining workers. The update of the leaving worker is merged, too."""
    story = """strategy Quorum(LocalSGD(steps=2), quorum=0.5, grace=0.0)
data size=100 in_flight=1 batch=4
join a
join b
join c
join d
wait 1
leave d
finish d samples=4
finish a
"""
    assert "> step" not in run_story(story)
    assert "> step d:4*" in run_story(f"{story}finish b\nwait alarm\n")


@dataclass
class Hears(StrategyWrapper):
    """A wrapper with a record of the types of its events."""

    heard: list[str] = field(default_factory=list)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        self.heard.append(type(event).__name__)
        return self.inner.on(event, view)


def test_inner_strategy_receives_the_event_that_closes_a_round() -> None:
    """The inner strategy receives, for example, the loss of the last worker of a round."""
    conductor = Data(100, 1, batch=4).conductor(Quorum(Hears(LocalSGD(steps=1)), quorum=1.0))
    play = ScenarioRun(conductor)
    for line in ("join a", "join b", "finish a", "lose b"):
        list(play.do(line))
    assert conductor.version == 1, "closed by the loss"
    strategy: Any = conductor.strategy
    assert strategy.inner.heard == ["Joined", "Joined", "AlarmFired", "Lost", "Arrived"]


def test_inner_deadline_ends_each_task_once() -> None:
    """At the end of a round, the inner strategy sees no busy workers, and ends no task twice."""
    run = ran(
        Quorum(Deadline(LocalSGD(steps=4), 3.0)), machines(4, 100.0), torch.zeros(40_000), "seconds>=400"
    )
    hurried = [action.task for action in actions(run, HandOver)]
    assert len(hurried) == len(set(hurried)) > 3


def test_copies_by_fast_workers_count_in_the_quorum() -> None:
    """Copies count if a fast worker repeats the tasks of three slow workers while it waits for the merge."""
    three_slow = [Machine("m0", PACE), *(Machine(f"m{number}", 10 * PACE) for number in (1, 2, 3))]
    alone, both = (
        ran(make(Quorum(LocalSGD(steps=4))), three_slow, torch.zeros(40_000), "seconds>=1000")
        for make in (lambda one: one, BackupTasks)
    )
    assert both.summary["versions"] > 3 * alone.summary["versions"]


def test_stale_updates_do_not_count_in_the_quorum() -> None:
    """Two late updates and one other update do not reach a quorum of two of four workers."""
    story = """strategy Quorum(LocalSGD(steps=1), quorum=0.5, grace=0.0)
data size=100 in_flight=1 batch=4
join a
join b
join c
join d
wait 1
finish a
finish b
wait alarm
finish c
finish d
wait 1
finish a
"""
    message = run_story(story)
    assert message.count("> step") == 1, message
    assert run_story(f"{story}finish b\nwait alarm\n").count("> step") == 2


def test_share_is_samples_times_samples_per_step() -> None:
    """A task of 7 samples has minibatches of 5 and 2 samples."""
    strategy = Quorum(LocalSGD(steps=2), quorum=1.0)
    run = ran(strategy, machines(2), torch.zeros(17), "epochs>=1")
    (step,) = actions(run, Step)
    assert step.shares == pytest.approx({"m0:1": 50 / 74.5, "m1:2": 24.5 / 74.5})


def test_infinite_grace_is_rejected() -> None:
    with raises(UsageError, "invalid_value", name="grace"):
        Quorum(LocalSGD(), grace=1e308)
