"""Workers that take as long as machines would: never less, by delays of the same model, in every task."""

from typing import Any

import pytest

import oddlot
from oddlot import Asynchronous, Local, Machine, Run, Simulated, Strategy, Synchronous, Trace
from oddlot.core.errors import UsageError
from oddlot.core.words import Arrived, Facts
from oddlot.recipe import Recipe, Settings
from oddlot.testing.engines import DrivenRun
from oddlot.training import prepared
from tests.fits import a_job, trained

pytestmark = pytest.mark.usefixtures("fork_server")

FAST, SLOW = Machine("fast", 0.0005), Machine("slow", 0.005, Trace((1.0, 4.0)))


def answers(run: Run | DrivenRun, node: str = "") -> list[Facts]:
    """The updates of this worker, or of everybody."""
    updates = [record.event.update for record in run.records if isinstance(record.event, Arrived)]
    return [update for update in updates if node in (update.sender, "")]


def paces(run: Run | DrivenRun, node: str) -> list[float]:
    """Seconds for each sample of this worker's answers."""
    taken = answers(run, node)
    return [(update.seconds["load"] + update.seconds["compute"]) / update.samples for update in taken]


def until_it_answered(node: str, times: int, strategy: Strategy, machines: tuple[Machine, ...]) -> DrivenRun:
    """The others may work for long before this worker is there."""
    place = Local(len(machines), 1, as_if=machines)
    with prepared(Recipe(a_job(), strategy, place, Settings(until="epochs>=1e6"))) as training:
        run = DrivenRun(training)
        run.until(lambda: len(answers(run, node)) >= times)
    return run


def test_a_task_takes_as_long_as_on_the_machine() -> None:
    run = until_it_answered("w2", 4, Synchronous(samples=12), (FAST, SLOW))
    fast, slow = paces(run, "w1"), paces(run, "w2")
    assert min(fast) >= 0.0005
    assert all(pace >= 0.005 for pace in slow)
    assert max(min(slow[::2]), min(slow[1::2])) >= 0.02, "each second one"


def test_one_code_two_clocks() -> None:
    """While the slow one computes, the fast one answers as often as under the virtual clock, if nobody disturbs it."""
    machines = Machine("w1", 0.001), Machine("w2", 0.01)
    here = until_it_answered("w2", 12, Asynchronous(), machines)
    there, _ = trained(a_job(), Asynchronous(), Simulated(list(machines)), "epochs>=10")
    assert min(in_between(here)) <= max(in_between(there)) + 1
    assert max(in_between(here)) >= min(in_between(there)) / 2


def in_between(run: Run | DrivenRun) -> list[int]:
    """The numbers of answers of w1 between two of w2."""
    senders = "".join("." if facts.sender == "w1" else " " for facts in answers(run))
    return list(map(len, senders.split()[1:-1]))


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
