"""Tests of workers with `as_if`: each task takes as long as on the given machine, by the same delay model."""

import os
from pathlib import Path
from typing import Any

import pytest

import oddlot
from oddlot import Asynchronous, Local, Machine, Run, Simulated, Strategy, Synchronous
from oddlot.core.support.errors import UsageError
from oddlot.core.support.random_streams import stream
from oddlot.machines import Trace
from oddlot.machines.step_time_records import machines_like, read_minibatch_times
from oddlot.run.config import RunConfig
from oddlot.run.recipe import Recipe
from oddlot.run.training import prepared
from oddlot.testing.engine_check import DrivenRun
from tests.engines.log import updates
from tests.fits import a_job, trained
from tests.transcripts import raises

pytestmark = pytest.mark.usefixtures("fork_server")

FAST, SLOW = Machine("fast", 0.0005), Machine("slow", 0.002, Trace((1.0, 4.0)))


def paces(run: Run | DrivenRun, node: str) -> list[float]:
    """Return the seconds per sample of each update of a worker."""
    taken = updates(run.records, node)
    return [(update.seconds["load"] + update.seconds["compute"]) / update.samples for update in taken]


def until_all_answered(times: int, strategy: Strategy, machines: tuple[Machine, ...]) -> DrivenRun:
    """Drive a run until each worker has sent at least `times` updates, even if some start late."""
    place = Local(len(machines), 1, as_if=machines)
    with prepared(Recipe(a_job(), strategy, place, RunConfig(until="epochs>=1e6"))) as training:
        run = DrivenRun(training)
        run.until(lambda: all(len(updates(run.records, node)) >= times for node in place.names))
    return run


RECORDED = ",worker,gpu,time,batch_time_norm\n" + "\n".join(
    f"{line},{line % 2},25,{line},{100 * (1 + line * line % 7)}" for line in range(40)
)
REAL = Path(os.environ.get("ODDLOT_DATA", "nowhere")) / "straggler_alibaba_minibatch" / "job_1_norm.csv"
is_there = pytest.mark.skipif(not REAL.is_file(), reason=f"ODDLOT_DATA names no folder with {REAL.name}")


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=is_there)], ids=["made", "alibaba"])
def test_recorded_step_times_are_replayed_in_order(real: bool, tmp_path: Path) -> None:
    """Each task takes as long as the recorded one. The seed sets the start of the replay."""
    record = REAL if real else tmp_path / "times.csv"
    if not real:
        record.write_text(RECORDED)
    machines = tuple(machines_like(read_minibatch_times(record), 2, seconds_per_sample=0.002))
    run = until_all_answered(16, Synchronous(samples=12), machines)
    for node, machine in zip(("w1", "w2"), machines, strict=True):
        recorded = machine.delay.start(stream(0, f"delay {node}"))
        over = [pace / (machine.seconds_per_sample * recorded()) for pace in paces(run, node)]
        assert len(over) >= 16
        assert 1 <= min(over) < 1.5, "not longer on purpose"


def test_local_and_simulated_engines_have_equal_pace() -> None:
    """During a slow task, the fast worker sends about the same number of updates as under the virtual clock."""
    machines = Machine("w1", 0.001), Machine("w2", 0.01)
    here = in_between(until_all_answered(10, Asynchronous(), machines))
    there = in_between(trained(a_job(), Asynchronous(), Simulated(list(machines)), "epochs>=10")[0])
    assert min(here) <= max(there) + 1
    assert max(here) >= min(there) / 2


def in_between(run: Run | DrivenRun) -> list[int]:
    """Return the numbers of updates of w1 between two updates of w2."""
    senders = "".join("." if facts.sender == "w1" else " " for facts in updates(run.records))
    return list(map(len, senders.split()[1:-1]))


def test_slow_fault_lengthens_steps() -> None:
    """A worker waits four times the duration of each minibatch, as under the virtual clock."""
    chaos = oddlot.faults.Chaos([oddlot.faults.Fault("slow", "w1", at_versions=(1,), factor=4.0)])
    run, _ = trained(a_job(), Synchronous(), Local(1, 1, as_if=(SLOW,)), "epochs>=1", chaos=chaos)
    assert min(paces(run, "w1")[-2:]) >= 5 * 0.002


@pytest.mark.parametrize(
    ("machines", "code", "fields"),
    [
        ((FAST,), "different_lengths", {"machines": 1, "workers": 2}),
        ((), "different_lengths", {"machines": 0, "workers": 2}),
        ((FAST, "slow"), "invalid_value", {"name": "as_if"}),
        (0.5, "invalid_value", {"name": "as_if"}),
    ],
    ids=["one", "none", "a text", "a number"],
)
def test_invalid_as_if_machines_are_rejected(machines: Any, code: str, fields: dict[str, Any]) -> None:
    with raises(UsageError, code, **fields) as caught:
        oddlot.Local(2, as_if=machines)
    assert caught.value.key == "as_if"
