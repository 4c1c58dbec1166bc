"""Compute groups: samples per step, waits between workers, and changes of groups with their workers."""

from collections import Counter

import pytest
import torch

from oddlot import Asynchronous, LocalSGD, Machine, ProportionalLoad, Quorum, Simulated, Strategy, Synchronous
from oddlot.core.commands import Start, Step
from oddlot.core.events import Lost
from oddlot.core.sample_spans import samples_in
from oddlot.core.support.errors import UsageError
from oddlot.faults.plan import Chaos, Fault
from oddlot.machines import Exponential
from oddlot.strategies import Groups
from oddlot.testing import check_strategy
from tests.fits import a_job, trained
from tests.strategies.slow_fleets import BATCH, PACE, actions, machines, ran
from tests.transcripts import raises

NUMBERS = torch.arange(40.0 * BATCH)


@pytest.mark.parametrize(
    "inner", [Synchronous(), Quorum(LocalSGD(steps=2)), ProportionalLoad(Synchronous())], ids=repr
)
def test_groups_keep_the_promises_of_a_strategy(inner: Strategy) -> None:
    check_strategy(lambda: Groups(inner, groups=2), examples=60)


def test_one_group_is_synchronous_with_smaller_tasks() -> None:
    """In the first round, early workers get more samples, because later workers are not known yet."""
    five = machines(5)
    one, other = (
        ran(strategy, five, NUMBERS, "versions>=60")
        for strategy in (Groups(Synchronous(), groups=1), Synchronous(samples=1))
    )
    sizes = [samples_in(start.task.spans) for start in actions(one, Start)]
    assert (sizes[0], set(sizes[5:])) == (BATCH, {1})
    shares = [[*step.shares.values()] for step in actions(one, Step)[1:]]
    assert shares == [[*step.shares.values()] for step in actions(other, Step)[1:]] == [[0.2] * 5] * 59
    first = one.summary["seconds"] - other.summary["seconds"]
    assert first == pytest.approx((BATCH - 1) * PACE)


def test_one_group_of_one_worker_is_synchronous() -> None:
    one, other = (
        ran(strategy, machines(1), NUMBERS, "epochs>=2", lr=0.1)
        for strategy in (Groups(Synchronous(), groups=1), Synchronous())
    )
    assert (actions(one, Start), actions(one, Step)) == (actions(other, Start), actions(other, Step))
    assert one.model.get_parameter("weight").item() == other.model.get_parameter("weight").item()


@pytest.mark.parametrize("damping", [0.0, 1.0])
def test_groups_of_one_worker_are_asynchronous(damping: float) -> None:
    three = machines(3, 2.5)
    one, other = (
        ran(strategy, three, NUMBERS, "epochs>=2", lr=0.1)
        for strategy in (Groups(Synchronous(), groups=3, damping=damping), Asynchronous(damping=damping))
    )
    assert actions(one, Start) == actions(other, Start)
    assert [step.shares for step in actions(one, Step)] == [
        pytest.approx(step.shares) for step in actions(other, Step)
    ]


@pytest.mark.parametrize(("workers", "groups"), [(5, 1), (5, 2), (5, 3), (4, 4)])
def test_step_of_a_group_has_the_samples_of_a_batch(workers: int, groups: int) -> None:
    run = ran(Groups(Synchronous(), groups=groups), machines(workers, 3.0), NUMBERS, "epochs>=2")
    tasks = {start.task.id: samples_in(start.task.spans) for start in actions(run, Start)}
    steps = [sum(tasks[update] for update in step.shares) for step in actions(run, Step)]
    assert Counter(steps)[BATCH] > 0.9 * len(steps), (
        "all but the first ones, and those at the end of an epoch"
    )


def test_slow_worker_delays_only_its_own_group() -> None:
    slow = machines(4, 20.0)
    waits, grouped = (
        ran(Groups(Synchronous(), groups=groups), slow, NUMBERS, "epochs>=1").summary["seconds"]
        for groups in (1, 2)
    )
    assert grouped < 0.25 * waits


def test_quorum_counts_the_workers_of_its_group() -> None:
    """A quorum of half of two workers is one worker. The second group does not wait for its slow worker."""
    run = ran(
        Groups(Quorum(LocalSGD(steps=1), quorum=0.5, grace=0.0), groups=2),
        machines(4, 50.0),
        NUMBERS,
        "epochs>=1",
    )
    senders = [{update.rpartition(":")[0] for update in step.shares} for step in actions(run, Step)]
    groups = ({"m0", "m2"}, {"m1", "m3"})
    assert all(any(each <= group for group in groups) for each in senders)
    assert sum(each == {"m1"} for each in senders) > 10


def test_fast_workers_of_a_group_get_larger_tasks() -> None:
    run = ran(
        Groups(ProportionalLoad(Synchronous()), groups=2), machines(4, 4.0), NUMBERS.repeat(4), "epochs>=1"
    )
    sizes = {"m1": 0, "m3": 0}
    for start in actions(run, Start)[-40:]:
        if start.task.node in sizes:
            sizes[start.task.node] += samples_in(start.task.spans)
    assert sizes["m1"] > 2 * sizes["m3"]


def test_worker_moves_when_a_group_has_lost_two() -> None:
    """After the losses of m0 and m2 in the first group, a worker of the second group moves there."""
    fleet = [Machine(f"m{number}", 0.1) for number in range(5)]
    faults = tuple(Fault("leave", at_seconds=(1.0,), machine=name) for name in ("m0", "m2"))
    run, _ = trained(
        a_job(), Groups(Synchronous(), groups=2), Simulated(fleet), "epochs>=40", chaos=Chaos(faults)
    )
    late = actions(run, Step)[-30:]
    senders = [{update.rpartition(":")[0] for update in step.shares} for step in late]
    assert {len(each) for each in senders} == {1, 2}
    assert set().union(*senders) == {"m1", "m3", "m4"}


def test_groups_lose_no_sample_when_workers_are_killed() -> None:
    fleet = [Machine(f"m{number}", 0.1, Exponential(), seconds_to_return=1.0) for number in range(6)]
    chaos = Chaos((Fault("kill", every_seconds=1.5),))
    run, state = trained(
        a_job(), Groups(Synchronous(), groups=3), Simulated(fleet), "epochs>=30", chaos=chaos
    )
    assert len(state.merged) == run.summary["samples_merged"]
    assert sum(isinstance(record.event, Lost) for record in run.records) > 5


@pytest.mark.parametrize(
    ("inner", "code"),
    [
        ("FederatedAveraging", "not_for_groups"),
        ("Gossip", "not_for_groups"),
        ("AdaptiveLoad", "not_for_groups"),
    ],
)
def test_strategy_without_rounds_of_its_own_is_rejected(inner: str, code: str) -> None:
    import oddlot

    with raises(UsageError, code, inner=inner):
        Groups(getattr(oddlot, inner)())


def test_more_groups_than_workers_are_rejected() -> None:
    with raises(UsageError, "too_few_workers", k=3, workers=2):
        ran(Groups(Synchronous(), groups=3), machines(2), NUMBERS, "epochs>=1")
