"""Misfortune on purpose, the same on every engine: the books stay exact, and each fault is in the log."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oddlot import (
    Asynchronous,
    Chaos,
    FastestK,
    Fault,
    Lifetime,
    Local,
    LocalSGD,
    Machine,
    Simulated,
    Strategy,
    Synchronous,
)
from oddlot.core import words as w
from oddlot.core.conductor import ECHO
from oddlot.log import read_log
from oddlot.run import Run
from tests.fits import SAMPLES, Place, a_job, fleet, local, one_fork_server, trained
from tests.processes import program
from tests.test_resume import goes_on

FOREVER = Lifetime(1e9)
ENOUGH = {Local: 100, Simulated: 20}
"""epochs, so that everybody has joined, and has been struck, before the end"""


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    with one_fork_server():
        yield


def machines(count: int = 3) -> Simulated:
    """They come back when they are killed."""
    return Simulated(
        [Machine(f"w{i + 1}", 0.01, lifetime=FOREVER, seconds_to_return=0.5) for i in range(count)]
    )


BOTH = pytest.mark.parametrize("on", [local(3), machines()], ids=["local", "simulated"])


def struck_by(
    on: Place, *faults: Fault, strategy: Strategy | None = None, epochs: int = 4, **settings: Any
) -> Run:
    """A run whose books are checked after every record, and proved and replayed at its end."""
    chaos = Chaos(faults, **settings)
    run, books = trained(a_job(), strategy or Asynchronous(), on, f"epochs>={epochs}", chaos=chaos)
    assert len(books.merged) == epochs * SAMPLES
    return run


def struck(run: Run) -> list[w.Struck]:
    return [record.event for record in run.records if isinstance(record.event, w.Struck)]


def first(run: Run, event: type) -> Any:
    return next(record for record in run.records if isinstance(record.event, event))


@BOTH
def test_a_worker_is_killed(on: Place) -> None:
    run = struck_by(on, Fault("kill", "w2", at_versions=(3,)), epochs=ENOUGH[type(on)])
    assert struck(run) == [w.Struck(0, "kill", "w2")]
    assert run.summary["workers_lost"] == 1
    assert first(run, w.Lost).event.node == "w2"


@BOTH
def test_a_worker_leaves_with_notice(on: Place) -> None:
    run = struck_by(on, Fault("leave", "w1", at_versions=(2,)), epochs=ENOUGH[type(on)])
    assert (run.summary["workers_left"], run.summary["workers_lost"]) == (1, 0)
    assert "lost" not in run.summary["wasted"]


@BOTH
def test_an_answer_is_corrupted_and_its_work_done_again(on: Place) -> None:
    run = struck_by(on, Fault("corrupt", at_versions=(2, 5)))
    assert [event.kind for event in struck(run)] == ["corrupt", "corrupt"]
    refused = [record.event for record in run.records if isinstance(record.event, w.Refused)]
    assert len(refused) == 2
    assert "not finite in 0.weight (10 of 10), 0.bias (5 of 5)" in refused[0].reason
    assert run.summary["wasted"]["refused"] > 0


@BOTH
def test_an_answer_is_lost_on_its_way(on: Place) -> None:
    run = struck_by(on, Fault("drop", at_versions=(2,)))
    assert first(run, w.Cancelled).event.node == struck(run)[0].node


@BOTH
def test_an_answer_is_late(on: Place) -> None:
    run = struck_by(on, Fault("delay", "w3", at_versions=(2,), delay_seconds=0.3), epochs=ENOUGH[type(on)])
    told = first(run, w.Struck).now
    answers = [r.now for r in run.records if isinstance(r.event, w.Arrived) and r.event.update.sender == "w3"]
    assert min(now - told for now in answers if now > told) >= 0.3


def test_a_late_answer_of_a_lost_worker_is_an_echo() -> None:
    faults = (
        Fault("delay", "w3", at_versions=(2,), delay_seconds=2.0),
        Fault("kill", "w3", at_seconds=(1.0,)),
    )
    run = struck_by(machines(), *faults, epochs=40)
    echoes = [
        r.event.update.sender for r in run.records if r.remark == ECHO and isinstance(r.event, w.Arrived)
    ]
    assert echoes == ["w3"]


@BOTH
def test_a_worker_is_frozen_for_a_while(on: Place) -> None:
    run = struck_by(on, Fault("freeze", "w1", at_versions=(2,), for_seconds=0.4), epochs=ENOUGH[type(on)])
    told = first(run, w.Struck).now
    answers = [r.now for r in run.records if isinstance(r.event, w.Arrived) and r.event.update.sender == "w1"]
    later = [now - told for now in answers if now > told + 0.05]
    assert min(later) >= 0.4, "it went on where it was"


def test_a_simulated_worker_is_slow_for_a_while() -> None:
    run = struck_by(machines(1), Fault("slow", at_versions=(2,), factor=4.0, for_seconds=1.0), epochs=3)
    answers = [r.event.update.seconds["compute"] for r in run.records if isinstance(r.event, w.Arrived)]
    assert [round(seconds / 0.08) for seconds in answers[:8]] == [1, 1, 1, 5, 5, 5, 1, 1]


def test_a_worker_process_is_slow() -> None:
    """It waits five times as long as each step takes."""
    run = struck_by(local(1), Fault("slow", at_versions=(20,), factor=20.0), epochs=20)
    answers = [r.event.update.seconds["compute"] for r in run.records if isinstance(r.event, w.Arrived)]
    before, after = sorted(answers[2:20]), sorted(answers[22:])
    assert after[len(after) // 2] > 5 * before[len(before) // 2]


@BOTH
@pytest.mark.parametrize(
    "strategy",
    [Synchronous(), FastestK(k=2), Asynchronous(), LocalSGD(steps=2)],
    ids=lambda s: type(s).__name__,
)
def test_all_together(on: Place, strategy: Strategy) -> None:
    often = {"kill": {}, "leave": {}, "drop": {}, "delay": {"delay_seconds": 0.1}}
    freeze: dict[str, Any] = {"for_seconds": 0.1}
    slow: dict[str, Any] = {"factor": 1.0, "for_seconds": 0.2}
    kinds: dict[str, Any] = often | {"freeze": freeze, "slow": slow}
    faults = [
        Fault(kind, every_seconds=0.2 * (place + 4), **how)
        if isinstance(on, Simulated)
        else Fault(kind, at_versions=(2 + place, 10 + place), **how)
        for place, (kind, how) in enumerate(kinds.items())
    ]
    run = struck_by(on, *faults, strategy=strategy, epochs=12)
    assert struck(run)


def test_one_seed_is_one_story() -> None:
    def story(seed: int) -> list[w.Record]:
        faults = (Fault("kill", per_hour=3600.0), Fault("corrupt", every_seconds=0.7))
        return list(struck_by(machines(), *faults, epochs=12, seed=seed).records)

    assert story(1) == story(1)
    assert story(1) != story(2)


def test_a_fault_waits_for_its_machine() -> None:
    on = Simulated([Machine("early", 0.01), Machine("late", 0.01, joins_at_seconds=1.0)])
    run = struck_by(on, Fault("kill", "late", at_seconds=(0.5,)), epochs=8)
    assert struck(run) == [w.Struck(0, "kill", "late")]
    assert first(run, w.Struck).now == 1.0


KILLED = """
import sys

import oddlot
from tests.fits import a_job, fleet, local

chaos = oddlot.Chaos([oddlot.Fault("kill_hub", at_versions=(20,))])
on = local(2) if sys.argv[2] == "local" else fleet(2)
oddlot.fit(
    a_job(), oddlot.Asynchronous(), on, until="epochs>=6", out=sys.argv[1], checkpoint_every="5 versions",
    chaos=chaos, resume=sys.argv[3] == "resume",
)
print("done")
"""


@pytest.mark.parametrize("place", ["local", "simulated"])
def test_the_hub_is_killed_once_and_the_run_goes_on(tmp_path: Path, place: str) -> None:
    with program("-c", KILLED, tmp_path, place, "begin") as process:
        assert process.wait() == -signal.SIGKILL
    assert any(isinstance(record.event, w.Struck) for record in read_log(tmp_path / "records.jsonl"))
    with program("-c", KILLED, tmp_path, place, "resume") as process:
        out, err = process.communicate()
        assert (process.returncode, out, err) == (0, "done\n", "")
    goes_on(tmp_path, "epochs>=7")


def test_without_chaos_the_engine_is_itself() -> None:
    run, _ = trained(a_job(), Synchronous(), fleet(2), chaos=Chaos())
    plain, _ = trained(a_job(), Synchronous(), fleet(2))
    assert list(run.records) == list(plain.records)
