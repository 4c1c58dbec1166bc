"""Misfortune on purpose, the same on every engine: the books stay exact, and each fault is in the log."""

import signal
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest

import oddlot
from oddlot import (
    Asynchronous,
    Chaos,
    FastestK,
    Fault,
    Local,
    LocalSGD,
    Machine,
    Simulated,
    Strategy,
    Synchronous,
)
from oddlot.core import words as w
from oddlot.core.conductor import ECHO
from oddlot.core.errors import JobError
from oddlot.engines.disturbed import Disturbed
from oddlot.log import read_log
from oddlot.run import Run
from tests.fits import SAMPLES, Place, a_job, fleet, local, trained
from tests.processes import program
from tests.test_resume import goes_on

pytestmark = pytest.mark.usefixtures("fork_server")

ENOUGH = {Local: 100, Simulated: 20}
"""epochs, so that everybody has joined, and has been struck, before the end"""


def machines(count: int = 3) -> Simulated:
    """They come back when they are killed."""
    return Simulated([Machine(f"w{i + 1}", 0.01, seconds_to_return=0.5) for i in range(count)])


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
    assert struck(run) == [w.Struck("kill w2 at_versions=3", "kill", "w2")]
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
    held_back = (
        0.3 if isinstance(on, Simulated) else 0.2
    )  # on a real clock it begins a moment before it is told
    assert min(now - told for now in answers if now > told) >= held_back


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
    assert [round(seconds / 0.08) for seconds in answers[:8]] == [1, 1, 5, 5, 3, 1, 1, 1], (
        "the task under way too"
    )


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
    assert struck(run) == [w.Struck("kill late at_seconds=0.5", "kill", "late")]
    assert first(run, w.Struck).now == 1.0


@BOTH
def test_time_zero_is_a_time(on: Place) -> None:
    """Workers are struck as soon as they are there."""
    run = struck_by(on, Fault("slow", "w1", at_seconds=(0,), factor=1e-9), epochs=ENOUGH[type(on)])
    assert [event.node for event in struck(run)] == ["w1"]


def test_a_run_in_which_nothing_can_happen_any_more_ends(tmp_path: Path) -> None:
    """Misfortune goes on for ever, but nobody is left to suffer it."""
    gone = Simulated([Machine("a", 0.01), Machine("b", 0.01)])
    chaos = Chaos([Fault("kill", every_seconds=0.1)])
    with pytest.raises(JobError, match=r"nothing can happen any more from .* 0 machines are left"):
        trained(a_job(), Asynchronous(), gone, "epochs>=40", chaos=chaos)


def test_a_run_looks_at_its_goal_while_only_misfortune_goes_on() -> None:
    """The only machine is frozen for long, and struck again and again."""
    faults = (
        Fault("freeze", at_seconds=(0.1,), for_seconds=1000.0),
        Fault("slow", every_seconds=0.5, factor=1.0),
    )
    run, _ = trained(a_job(), Asynchronous(), machines(1), "epochs>=40 or seconds>=5", chaos=Chaos(faults))
    assert run.ended == "seconds>=5"
    assert run.summary["seconds"] == pytest.approx(5, abs=0.5)


def test_the_longest_of_several_freezes_counts() -> None:
    faults = (
        Fault("freeze", "w1", at_seconds=(0.1,), for_seconds=10.0),
        Fault("freeze", "w1", at_seconds=(0.5,), for_seconds=1.0),
    )
    run = struck_by(machines(2), *faults, epochs=80)
    answers = [r.now for r in run.records if isinstance(r.event, w.Arrived) and r.event.update.sender == "w1"]
    after = next(now for now in answers if now > 0.2)
    assert 10.1 < after < 10.3, "it went on with what it had begun"


def test_of_several_slow_faults_the_strongest_counts_while_it_lasts() -> None:
    """A short, weak one hides the long, strong one at no time, and ends when it does."""
    faults = (
        Fault("slow", "w1", at_seconds=(0,), factor=9, for_seconds=5.0),
        Fault("slow", "w1", at_seconds=(1.0,), factor=1, for_seconds=0.5),
        Fault("slow", "w1", at_seconds=(5.5,), factor=3, for_seconds=4.0),
        Fault("slow", "w1", at_seconds=(6.0,), factor=1, for_seconds=9.0),
    )
    on = Simulated([Machine("w1", 0.1)], maths=False)
    run, _ = trained(a_job(count=48), Asynchronous(samples=1), on, "seconds>=16", chaos=Chaos(faults))
    answers = [r.now for r in run.records if isinstance(r.event, w.Arrived)]

    def paces(begin: float, end: float) -> set[float]:
        inside = [now for now in answers if begin <= now <= end]
        return {round(after - before, 6) for before, after in pairwise(inside)}

    assert paces(0.5, 5.0) == {1.0}
    assert paces(5.1, 5.5) == {0.1}
    assert paces(6.0, 9.4) == {0.4}
    assert paces(10.0, 14.9) == {0.2}
    assert paces(15.3, 16.0) == {0.1}


def test_what_is_outdone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault for good that strikes again and again is one."""
    kept, suffer = list[int](), Disturbed._suffer

    def counted(engine: Disturbed, kind: str, node: str) -> None:
        suffer(engine, kind, node)
        kept.append(len(engine.lasting[kind, node]))

    monkeypatch.setattr(Disturbed, "_suffer", counted)
    struck_by(machines(2), Fault("slow", "w1", every_seconds=0.05, factor=2))
    assert len(kept) > 10
    assert max(kept) == 1


def test_faults_that_leave_no_time_to_work_are_told() -> None:
    """They, not the machine's memory, are what ends every process."""
    chaos = Chaos([Fault("kill", every_seconds=0.001)])
    with pytest.raises(
        JobError, match=r"the last one, w\d[.\d]*, was killed by a fault on purpose: have it st"
    ):
        trained(a_job(), Asynchronous(), Local(workers=2), "epochs>=4", chaos=chaos)


@BOTH
def test_a_frozen_machine_hears_of_its_end_when_it_goes_on(on: Place) -> None:
    """SIGTERM waits for SIGCONT."""
    faults = Fault("freeze", "w1", at_versions=(3,), for_seconds=0.5), Fault("leave", "w1", at_versions=(3,))
    run = struck_by(on, *faults, epochs=ENOUGH[type(on)])
    assert [event.kind for event in struck(run)] == ["freeze", "leave"], "in the order of the file"
    frozen, left = first(run, w.Struck).now, first(run, w.Leaving).now
    assert left - frozen == pytest.approx(0.5) or left - frozen > 0.5
    assert run.summary["workers_left"] == 1


def test_nobody_dies_twice() -> None:
    """Two faults of one moment strike two machines."""
    for seed in range(5):
        run = struck_by(
            machines(),
            Fault("kill", at_versions=(3,)),
            Fault("leave", at_versions=(3,)),
            epochs=20,
            seed=seed,
        )
        assert len({event.node for event in struck(run)}) == 2
        assert (run.summary["workers_lost"], run.summary["workers_left"]) == (1, 1)


def test_what_was_meant_for_a_lost_worker_s_answer_is_for_another_s() -> None:
    faults = Fault("corrupt", "w1", at_seconds=(0.01,)), Fault("kill", "w1", at_seconds=(0.02,))
    run = struck_by(machines(), *faults, epochs=40)
    assert [event.node for event in struck(run)] == ["w1", "w1.2"]
    assert sum(isinstance(r.event, w.Refused) for r in run.records) == 1


def test_a_fault_has_chance_of_its_own() -> None:
    """Another fault, or another machine, leaves its times as they were."""

    def times(on: Place, *others: Fault) -> list[float]:
        run = struck_by(on, *others, Fault("slow", "w1", per_hour=7200.0, factor=1e-9), epochs=20)
        told = [r.now for r in run.records if isinstance(r.event, w.Struck) and r.event.kind == "slow"]
        return told[:3]

    assert times(machines()) == times(machines(2)) == times(machines(), Fault("kill", "w2", per_hour=3600.0))


def test_what_is_dropped_is_given_back() -> None:
    """Its memory too: a fleet would run out of it."""
    on = local(2)
    run = struck_by(on, Fault("drop", at_versions=tuple(range(2, 40))), epochs=30)
    assert len(struck(run)) == 38


class Killed(Exception):
    """What ends a run in the middle."""


def test_a_resumed_run_is_struck_by_what_has_not_struck_yet(tmp_path: Path) -> None:
    """Every time of a fault counts once, whatever the run goes on from; another file's faults count from the start."""
    faults = [
        Fault("slow", at_seconds=(0.1, 0.3, 0.9, 1.2), factor=1e-9),
        Fault("corrupt", at_versions=(3, 30)),
    ]

    def goes(until: str, resume: bool, kill: float, *faults: Fault) -> None:
        def watch(record: w.Record) -> None:
            if record.now > kill:
                raise Killed

        watch.replay = lambda _: None  # type: ignore[attr-defined]
        oddlot.fit(
            a_job(),
            Asynchronous(),
            machines(2),
            until=until,
            out=tmp_path,
            resume=resume,
            chaos=Chaos(faults),
            checkpoint_every="2 versions",
            observers=[watch],
        )

    log = tmp_path / "records.jsonl"
    with pytest.raises(Killed):
        goes("epochs>=8", False, 0.6, *faults)
    goes("epochs>=8", True, inf, *faults)
    events = [(r.event, round(r.now, 1)) for r in read_log(log) if isinstance(r.event, w.Struck)]
    slowed = [(event.node, now) for event, now in events if event.kind == "slow"]
    sufferers = {node for node, now in slowed if now < 0.6}
    assert [now for _, now in slowed] == [0.1, 0.3, *([0.6] * len(sufferers)), 0.9, 1.2], "what lasts goes on"
    told = [(event.kind, now) for event, now in events]
    assert sum(kind == "corrupt" for kind, _ in told) == 2
    goes("epochs>=9", True, inf, Fault("drop", at_versions=(40,)), Fault("corrupt", at_versions=(50,)))
    kinds = [r.event.kind for r in read_log(log) if isinstance(r.event, w.Struck)]
    assert kinds[-2:] == ["drop", "corrupt"]


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
