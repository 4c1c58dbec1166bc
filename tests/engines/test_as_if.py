"""Workers that take as long as machines would: never less, by delays of the same model, in every task."""

from collections.abc import Iterator
from typing import Any

import pytest

import oddlot
from oddlot import Asynchronous, Local, Machine, Run, Simulated, Synchronous, Trace
from oddlot.core.errors import UsageError
from oddlot.core.words import Arrived
from tests.fits import a_job, one_fork_server, trained

FAST, SLOW = Machine("fast", 0.0005), Machine("slow", 0.005, Trace((1.0, 4.0)))


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    with one_fork_server():
        yield


def paces(run: Run, node: str) -> list[float]:
    """Seconds for each sample of this worker's answers."""
    updates = [record.event.update for record in run.records if isinstance(record.event, Arrived)]
    taken = [update for update in updates if update.sender == node]
    return [(update.seconds["load"] + update.seconds["compute"]) / update.samples for update in taken]


def answers(run: Run, node: str) -> int:
    return sum(
        isinstance(record.event, Arrived) and record.event.update.sender == node for record in run.records
    )


def test_a_task_takes_as_long_as_on_the_machine() -> None:
    run, _ = trained(a_job(), Synchronous(samples=12), Local(2, 1, as_if=(FAST, SLOW)), "epochs>=2")
    fast, slow = paces(run, "w1"), paces(run, "w2")
    assert min(fast) >= 0.0005
    assert len(slow) >= 2
    assert all(pace >= 0.005 for pace in slow)
    assert max(min(slow[::2]), min(slow[1::2])) >= 0.02, "each second one"


def test_one_code_two_clocks() -> None:
    """The same strategy gives the fast one as many tasks here as under the virtual clock, but for what is left over."""
    machines = Machine("w1", 0.001), Machine("w2", 0.01)
    here, _ = trained(a_job(), Asynchronous(), Local(2, 1, as_if=machines), "epochs>=2")
    there, _ = trained(a_job(), Asynchronous(), Simulated(list(machines)), "epochs>=2")
    assert 1 <= answers(here, "w2") <= answers(there, "w2") + 1


def test_slowness_makes_it_longer() -> None:
    """As under the virtual clock: four times as long to wait after each minibatch."""
    chaos = oddlot.Chaos([oddlot.Fault("slow", "w1", at_versions=(1,), factor=4.0)])
    run, _ = trained(a_job(), Synchronous(), Local(1, 1, as_if=(SLOW,)), "epochs>=2", chaos=chaos)
    last = paces(run, "w1")[-2:]
    assert min(last) >= 5 * 0.005


@pytest.mark.parametrize(
    ("machines", "words"),
    [
        ((FAST,), "as_if has 1 machines for 2 workers"),
        ((FAST, "slow"), "must be a Machine for each worker"),
        (0.5, "must be a Machine for each worker"),
    ],
)
def test_what_is_no_fleet_is_refused(machines: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        oddlot.Local(2, as_if=machines)
