"""Tests of fault injection on all engines: sample accounting stays exact, and the log has each fault."""

import signal
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest

import oddlot
from oddlot import Asynchronous, FastestK, Local, Machine, Simulated, Strategy, Synchronous
from oddlot.core.events import Arrived, Cancelled, FaultInjected, Leaving, Lost, UpdateRejected
from oddlot.core.support.errors import JobError
from oddlot.faults import Chaos, Fault
from oddlot.faults.injector import FaultInjector, LastingFaults
from oddlot.history.log import read_log
from oddlot.history.run_settings import Resume
from oddlot.run.result import Run
from tests.engines.log import events, names, times, updates
from tests.fits import SAMPLES, Place, a_job, fleet, local, trained
from tests.processes import program
from tests.run.test_resume import KillAt, Killed, goes_on
from tests.transcripts import raises, transcribe

pytestmark = pytest.mark.usefixtures("fork_server", "warm_start")


def machines(count: int = 3, computes: bool = False) -> Simulated:
    """Return a fleet of `count` machines that return 0.5 s after a loss."""
    return Simulated(
        [Machine(f"w{i + 1}", 0.01, seconds_to_return=0.5) for i in range(count)], computes=computes
    )


def struck_by(
    on: Place, *faults: Fault, strategy: Strategy | None = None, epochs: int = 4, **settings: Any
) -> Run:
    """Return a run with these faults. Its state is checked after every record, and its log is replayed at the end."""
    chaos = Chaos(faults, **settings)
    run, state = trained(a_job(), strategy or Asynchronous(), on, f"epochs>={epochs}", chaos=chaos)
    assert len(state.merged) == epochs * SAMPLES
    return run


def struck(run: Run, kind: str = "") -> list[FaultInjected]:
    return [event for event in events(run.records, FaultInjected) if kind in ("", event.kind)]


def struck_at(run: Run, kind: str) -> float:
    """Return the time of the first fault of this kind."""
    return next(r.now for r in run.records if isinstance(r.event, FaultInjected) and r.event.kind == kind)


def answered(run: Run, node: str) -> list[float]:
    return [r.now for r in run.records if isinstance(r.event, Arrived) and r.event.update.sender == node]


# --- each fault, on each engine --------------------------------------------------------------------

FAULTS = (
    Fault("slow", "w1", at_seconds=(0,), factor=1e-9),
    Fault("corrupt", at_versions=(2, 5)),
    Fault("drop", at_versions=(8,)),
    Fault("delay", "w3", at_versions=(12,), delay_seconds=0.3),
    Fault("leave", "w2", at_versions=(24,)),
    Fault("freeze", "w4", at_versions=(30,), for_seconds=0.4),
    Fault("freeze", "w1", at_versions=(36,), for_seconds=0.5),
    Fault("leave", "w1", at_versions=(36,)),
    Fault("kill", "w2", at_versions=(48,)),
)


@pytest.fixture(scope="module", params=[local(4), machines(4, computes=True)], ids=["local", "simulated"])
def everything_strikes(request: pytest.FixtureRequest, fork_server: None) -> Run:
    """Return a run that is long enough for all workers to join and all faults to be injected."""
    return struck_by(request.param, *FAULTS, epochs=100 if isinstance(request.param, Local) else 25)


def test_every_fault_is_logged(everything_strikes: Run) -> None:
    message = struck(everything_strikes)
    assert {event.fault for event in message} == set(map(str, FAULTS))
    named = {event.kind: event.node for event in message}
    assert (named["slow"], named["delay"], named["kill"]) == ("w1", "w3", "w2.2")
    at_once = [event.kind for event in message if event.node == "w1"][-2:]
    assert at_once == ["freeze", "leave"], "in the order of the file"


def test_killed_worker_is_lost_and_worker_with_notice_leaves(everything_strikes: Run) -> None:
    summary, records = everything_strikes.summary, everything_strikes.records
    assert (summary["workers_lost"], summary["workers_left"]) == (1, 2)
    assert sorted(event.node for event in events(records, Leaving)) == ["w1", "w2"]
    assert sorted(event.node for event in events(records, Lost)) == ["w1", "w2", "w2.2"]


def test_corrupted_update_is_rejected_and_recomputed(everything_strikes: Run) -> None:
    assert len(struck(everything_strikes, "corrupt")) == 2
    rejected = events(everything_strikes.records, UpdateRejected)
    assert len(rejected) == 2
    assert everything_strikes.summary["wasted"]["invalid"] > 0
    transcribe(rejected[0].reason, task=r"w\d:\d+", loss=r"(?<=its loss is )[\d.]+")


def test_dropped_update_is_cancelled(everything_strikes: Run) -> None:
    (event,), at = struck(everything_strikes, "drop"), struck_at(everything_strikes, "drop")
    after = [r for r in everything_strikes.records if r.now >= at]
    assert events(after, Cancelled)[0].node == event.node


def test_delayed_update_arrives_late(everything_strikes: Run) -> None:
    """An update arrives after its delay. On a real clock, the delay starts shortly before the fault is logged."""
    at = struck_at(everything_strikes, "delay")
    assert min(now - at for now in answered(everything_strikes, "w3") if now > at) >= 0.25


def test_frozen_worker_continues_later(everything_strikes: Run) -> None:
    at = struck_at(everything_strikes, "freeze")
    later = [now - at for now in answered(everything_strikes, "w4") if now > at + 0.05]
    assert min(later) >= 0.4


def test_frozen_machine_receives_its_notice_when_it_thaws(everything_strikes: Run) -> None:
    """A frozen process handles SIGTERM only after SIGCONT."""
    frozen, message = (
        next(r.now for r in everything_strikes.records if r.event == event)
        for event in (FaultInjected(str(FAULTS[6]), "freeze", "w1"), Leaving("w1"))
    )
    assert message - frozen >= 0.5 - 1e-9


# --- only worker processes -------------------------------------------------------------------------


def test_faults_are_injected_while_tasks_are_cancelled() -> None:
    """`tests/simulation` does this under the virtual clock, with every strategy."""
    each = enumerate(FAULTS)
    faults = [replace(one, machine="", at_seconds=(), at_versions=(2 + at, 10 + at)) for at, one in each]
    assert struck(struck_by(local(3), *faults, strategy=FastestK(k=2), epochs=12))


def test_slow_fault_slows_a_worker_process() -> None:
    """A slow worker waits for 20 times the duration of each step."""
    run = struck_by(local(1), Fault("slow", at_versions=(10,), factor=20.0), epochs=4)
    seconds = [update.seconds["compute"] for update in updates(run.records)]
    before, after = sorted(seconds[2:10]), sorted(seconds[12:])
    assert after[len(after) // 2] > 5 * before[len(before) // 2]


def test_dropped_updates_free_their_memory() -> None:
    """A dropped update releases its memory: a worker has only two blocks."""
    run = struck_by(local(1), Fault("drop", at_versions=tuple(range(2, 12))))
    assert len(struck(run)) == 10


# --- only the virtual clock ------------------------------------------------------------------------


def test_fault_waits_for_its_machine() -> None:
    on = Simulated([Machine("early", 0.01), Machine("late", 0.01, joins_at_seconds=1.0)], computes=False)
    run = struck_by(on, Fault("kill", "late", at_seconds=(0.5,)), epochs=8)
    assert struck(run) == [FaultInjected("kill late at_seconds=0.5", "kill", "late")]
    assert times(run.records, FaultInjected) == [1.0]


def test_run_without_machines_ends_despite_future_faults() -> None:
    """A run ends if faults are due forever, but no machine is left."""
    gone = Simulated([Machine("a", 0.01), Machine("b", 0.01)], computes=False)
    chaos = Chaos([Fault("kill", every_seconds=0.1)])
    with raises(JobError, "stalled", machines=0, traces=[]) as caught:
        trained(a_job(), Asynchronous(), gone, "epochs>=40", chaos=chaos)
    assert caught.fields["seconds"] == pytest.approx(0.2)


def test_time_goal_is_checked_while_only_faults_occur() -> None:
    """A frozen machine with repeated faults, and without other events, still reaches the time goal."""
    faults = (
        Fault("freeze", at_seconds=(0.1,), for_seconds=1000.0),
        Fault("slow", every_seconds=0.5, factor=1.0),
    )
    run, _ = trained(a_job(), Asynchronous(), machines(1), "epochs>=40 or seconds>=5", chaos=Chaos(faults))
    assert run.ended == "seconds>=5"
    assert run.summary["seconds"] == pytest.approx(5, abs=0.5)


def test_longest_of_several_freezes_applies() -> None:
    faults = (
        Fault("freeze", "w1", at_seconds=(0.1,), for_seconds=10.0),
        Fault("freeze", "w1", at_seconds=(0.5,), for_seconds=1.0),
    )
    run = struck_by(machines(2), *faults, epochs=80)
    after = next(now for now in answered(run, "w1") if now > 0.2)
    assert 10.1 < after < 10.3, "it went on with what it had begun"


def test_strongest_of_several_slow_faults_applies() -> None:
    """A short, weak fault never hides a long, strong fault, and ends at its own time."""
    faults = (
        Fault("slow", "w1", at_seconds=(0,), factor=9, for_seconds=5.0),
        Fault("slow", "w1", at_seconds=(1.0,), factor=1, for_seconds=0.5),
        Fault("slow", "w1", at_seconds=(5.5,), factor=3, for_seconds=4.0),
        Fault("slow", "w1", at_seconds=(6.0,), factor=1, for_seconds=9.0),
    )
    on = Simulated([Machine("w1", 0.1)], computes=False)
    run, _ = trained(a_job(count=48), Asynchronous(samples=1), on, "seconds>=16", chaos=Chaos(faults))

    def paces(begin: float, end: float) -> set[float]:
        inside = [now for now in times(run.records, Arrived) if begin <= now <= end]
        return {round(after - before, 6) for before, after in pairwise(inside)}

    assert paces(0.5, 5.0) == {1.0}
    assert paces(5.1, 5.5) == {0.1}
    assert paces(6.0, 9.4) == {0.4}
    assert paces(10.0, 14.9) == {0.2}
    assert paces(15.3, 16.0) == {0.1}


def test_repeated_permanent_fault_is_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, apply = list[int](), LastingFaults.apply

    def counted(lasting: LastingFaults, kind: str, node: str, now: float) -> None:
        apply(lasting, kind, node, now)
        kept.append(len(lasting.active[kind, node]))

    monkeypatch.setattr(LastingFaults, "apply", counted)
    struck_by(machines(2), Fault("slow", "w1", every_seconds=0.05, factor=2))
    assert len(kept) > 10
    assert max(kept) == 1


@pytest.mark.parametrize("seed", range(5))
def test_simultaneous_faults_hit_different_machines(seed: int) -> None:
    faults = Fault("kill", at_versions=(3,)), Fault("leave", at_versions=(3,))
    run = struck_by(machines(), *faults, epochs=20, seed=seed)
    assert len({event.node for event in struck(run)}) == 2
    assert (run.summary["workers_lost"], run.summary["workers_left"]) == (1, 1)


def test_corrupt_fault_of_a_lost_worker_hits_its_replacement() -> None:
    faults = Fault("corrupt", "w1", at_seconds=(0.01,)), Fault("kill", "w1", at_seconds=(0.02,))
    run = struck_by(machines(computes=True), *faults, epochs=40)
    assert [event.node for event in struck(run)] == ["w1", "w1.2"]
    assert len(events(run.records, UpdateRejected)) == 1


def test_fault_times_do_not_depend_on_other_faults() -> None:
    """The times of a fault do not depend on other faults or machines."""

    def at(on: Place, *others: Fault) -> list[float]:
        run = struck_by(on, *others, Fault("slow", "w1", per_hour=7200.0, factor=1e-9), epochs=20)
        return times([r for r in run.records if r.event in struck(run, "slow")], FaultInjected)[:3]

    assert at(machines()) == at(machines(2)) == at(machines(), Fault("kill", "w2", per_hour=3600.0))


def test_empty_chaos_does_not_change_the_run() -> None:
    run, _ = trained(a_job(), Synchronous(), fleet(2), chaos=Chaos())
    plain, _ = trained(a_job(), Synchronous(), fleet(2))
    assert list(run.records) == list(plain.records)


# --- a killed hub ----------------------------------------------------------------------------------


def test_resumed_run_gets_only_the_remaining_faults(tmp_path: Path) -> None:
    """Each time of a fault counts once, from any checkpoint. Faults of another file count from the start of the run."""
    faults = [
        Fault("slow", at_seconds=(0.1, 0.3, 0.9, 1.2), factor=1e-9),
        Fault("corrupt", at_versions=(3, 30)),
    ]

    def goes(until: str, resume: Resume | None, kill: float, *faults: Fault) -> list[tuple[str, float]]:
        """Return the kinds and times of injected faults."""
        options: dict[str, Any] = {"chaos": Chaos(faults), "callbacks": [KillAt(kill)], "resume": resume}
        on = machines(2)
        oddlot.fit(
            a_job(), Asynchronous(), on, until=until, out=tmp_path, checkpoint_every="2 versions", **options
        )
        log = read_log(tmp_path / "records.jsonl")
        return [(r.event.kind, round(r.now, 1)) for r in log if isinstance(r.event, FaultInjected)]

    with pytest.raises(Killed):
        goes("epochs>=8", None, 0.61, *faults)
    message = goes("epochs>=8", "latest", inf, *faults)
    slowed = [now for kind, now in message if kind == "slow"]
    log = [r for r in read_log(tmp_path / "records.jsonl") if r.now < 0.6]
    sufferers = {event.node for event in events(log, FaultInjected) if event.kind == "slow"}
    assert slowed == [0.1, 0.3, *([0.6] * len(sufferers)), 0.9, 1.2], "what lasts goes on"
    assert len(message) - len(slowed) == 2, "corrupt"
    message = goes(
        "epochs>=9", "latest", inf, Fault("drop", at_versions=(40,)), Fault("corrupt", at_versions=(50,))
    )
    assert [kind for kind, _ in message][-2:] == ["drop", "corrupt"]


BEGUN = """
import sys

import oddlot
from tests.fits import a_job, local

chaos = oddlot.faults.Chaos([oddlot.faults.Fault("kill_hub", at_versions=(20,))])
oddlot.fit(
    a_job(), oddlot.Asynchronous(), local(2), until="epochs>=6", out=sys.argv[1], checkpoint_every="5 versions",
    chaos=chaos,
)
"""


@pytest.mark.parametrize("on", [local(2), machines()], ids=["local", "simulated"])
def test_hub_is_killed_once_and_the_run_resumes(
    tmp_path: Path, on: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of its own is killed by a signal. Under the virtual clock, an exception replaces the signal."""
    chaos = Chaos([Fault("kill_hub", at_versions=(20,))])
    options: dict[str, Any] = {"until": "epochs>=6", "out": tmp_path, "chaos": chaos}

    def killed(engine: FaultInjector) -> None:
        engine.save()
        raise Killed

    monkeypatch.setattr(FaultInjector, "_kill_hub", killed)
    if isinstance(on, Local):
        with program("-c", BEGUN, tmp_path) as process:
            assert process.wait() == -signal.SIGKILL
    else:
        with pytest.raises(Killed):
            oddlot.fit(a_job(), Asynchronous(), on, checkpoint_every="5 versions", **options)
    assert names(read_log(tmp_path / "records.jsonl"), FaultInjected) == ["FaultInjected"]
    assert oddlot.fit(a_job(), Asynchronous(), on, resume="latest", **options).ended == "epochs>=6"
    goes_on(tmp_path, "epochs>=7", on)
