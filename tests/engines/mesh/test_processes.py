"""Meshes of real processes. Any of them may be killed, including the launcher."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from oddlot import AdaptiveGossip, Gossip, JobError, Local, Machine, Run, StopRun, UsageError, fit, replay
from oddlot.core import task_timeouts
from oddlot.core.events import FaultInjected, LinkTraffic, ModelReceived, ModelRejected, PeerJoined, PeerLost
from oddlot.core.records import Record
from oddlot.core.support.errors import OddlotWarning
from oddlot.core.tasks import machine_of
from oddlot.faults import Chaos, Fault
from oddlot.history.audit import Proof
from oddlot.history.folder_lock import read_holder
from oddlot.history.peer_audit import prove_run
from oddlot.history.run_folder import SUMMARY, RunFolder
from oddlot.history.run_outcome import read_ending
from oddlot.report.run_report import RunReport
from tests.engines.mesh.hanging import EVALUATED, HANGS, TRAINED, Hanging, be_impatient
from tests.engines.mesh.waiting import is_running, wait_for
from tests.fits import a_job, rows
from tests.processes import HANG_SECONDS, program
from tests.transcripts import mask, raises, warns
from tests.warm_start import FRESH

pytestmark = pytest.mark.usefixtures("warm_start")
SAMPLES = 96
LAUNCH = """
from contextlib import suppress
from pathlib import Path
import sys
from oddlot import Gossip, Local, Machine, fit
from tests.fits import a_job, rows
on = Local(workers=3, threads=1, as_if=[Machine("any", 0.02)] * 3)
fit(a_job(count=96, eval_data=rows(50)), Gossip(), on, until="epochs>=12", out=sys.argv[1])
"""
"""Script of a run with three peers. They train for 8 s and mostly sleep, so the machine's load matters little."""


def meshed(folder: Path, until: str = "epochs>=20", workers: int = 3, **settings: Any) -> Run:
    """Train on a mesh of processes, and return the run."""
    job = a_job(count=SAMPLES, **({"eval_data": rows(50)} | settings.pop("job", {})))
    strategy = settings.pop("strategy", Gossip(period=2))
    on = Local(workers=workers, threads=1, as_if=settings.pop("as_if", None))
    return fit(job, strategy, on, until=until, out=folder, quiet=True, **settings)


def peers_of(folder: Path) -> list[int]:
    """Return the process ids of a run's peers, from the lock that the launcher writes."""
    message = read_holder(folder).partition("processes ")[2]
    return [int(pid) for pid in message.split(",")] if message else []


def test_peers_train_with_a_replacement_and_save_the_average(tmp_path: Path) -> None:
    """A replacement processes the remaining samples of a killed peer."""
    chaos = Chaos((Fault("kill", machine="w3", at_versions=(60,)),))
    paced = [Machine(f"w{number}", 0.002) for number in (1, 2, 3)]
    run = meshed(tmp_path, strategy=AdaptiveGossip(threshold=0.02), chaos=chaos, as_if=paced)
    assert run.ended == "epochs>=20"
    assert set(run.summary["peers_averaged"]) == {"w1", "w2", "w3.2"}
    proof = RunReport.read(tmp_path).proof
    assert (proof.faults, proof.whole, proof.merged) == ((), 20, 20 * SAMPLES)
    assert run.summary["samples_left_out"] == 0
    assert replay(tmp_path).difference is None
    assert run.summary["exchanges"] > 0
    traffic = [(one.peer, one.event) for one in run.records if isinstance(one.event, LinkTraffic)]
    links = [link for _, link in traffic]
    peers = run.summary["peers_averaged"]
    assert len({(peer, link.peer) for peer, link in traffic if {peer, link.peer} <= {*peers}}) == 6
    if sys.platform == "linux":
        counted = sum(link.os_bytes or 0 for link in links)
        assert counted == pytest.approx(sum(sum(link.bytes.values()) for link in links), rel=0.05)


def back(*peers: str) -> Callable[[Record], None]:
    """Return an observer that ends the run once other peers have received models of these peers after their loss."""
    lost, reached, waiting = set[str](), set[str](), {*peers}

    def watch(record: Record) -> None:
        match record.event:
            case PeerLost(peer):
                lost.add(peer)
            case PeerJoined(peer) if peer in lost or "." in peer:
                reached.add(peer)
            case ModelReceived(model) if model.sender in reached:
                waiting.discard(model.sender)
        if not waiting:
            raise StopRun("all are back")

    return watch


def test_real_processes_survive_faults(tmp_path: Path) -> None:
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        ("corrupt", "w1", {}),
        ("slow", "w2", {"factor": 1.0, "for_seconds": 0.5}),
        ("kill", "w3", {}),
        ("freeze", "w2", {"for_seconds": 6.0}),
    ]
    faults = [
        Fault(kind, machine=m, at_versions=(30 + 150 * i,), **more) for i, (kind, m, more) in enumerate(kinds)
    ]
    run = meshed(
        tmp_path,
        "epochs>=100000",
        strategy=Gossip(reply_timeout_seconds=2.0),
        chaos=Chaos(tuple(faults)),
        callbacks=[back("w2", "w3.2")],
        as_if=[Machine(f"w{number}", 0.002) for number in (1, 2, 3)],  # slow: leaves time between faults
    )
    assert run.ended == "stopped: all are back"
    events = [record.event for record in run.records]
    assert {event.kind for event in events if isinstance(event, FaultInjected)} == {
        kind for kind, _, _ in kinds
    }
    assert [(e.peer, e.code) for e in events if isinstance(e, ModelRejected)] == [
        ("w1", "numbers_not_finite")
    ]
    lost = {event.peer for event in events if isinstance(event, PeerLost)}
    assert {"w2", "w3"} <= lost
    assert PeerJoined("w3.2") in events
    assert set(run.summary["peers_averaged"]) == {"w1", "w2", "w3.2"}
    assert prove_run(RunFolder(tmp_path), SAMPLES).faults == ()
    assert replay(tmp_path).difference is None


def test_peers_finish_after_their_launcher_is_killed(tmp_path: Path) -> None:
    """A peer that is killed afterwards is not replaced, and its samples are left out."""
    out = tmp_path / "run"
    with program("-c", LAUNCH, out) as launcher:
        wait_for(lambda: len(RunFolder(out).logs()) == 3)
        peers = peers_of(out)
        assert len(peers) == 3
        launcher.kill()
        os.kill(peers[-1], signal.SIGKILL)
        with pytest.raises(UsageError) as caught:
            meshed(out, resume="latest")
        assert caught.value.code == "folder_in_use"
        assert all(str(peer) in caught.value.fields["holder"] for peer in peers[:-1])
        wait_for((out / SUMMARY).exists)
        wait_for(lambda: not any(map(is_running, peers)))
    summary, proof = read_ending(RunFolder(out)), RunReport.read(out).proof
    assert len(summary["peers_averaged"]) == 2
    assert 10 * SAMPLES // 3 < summary["samples_left_out"] <= 12 * SAMPLES // 3
    assert proof.merged == 12 * SAMPLES - summary["samples_left_out"]
    assert RunFolder(out).model.exists()


def test_run_resumes_after_all_processes_are_killed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with program("-c", LAUNCH.replace("out=", "checkpoint_every='0.2 seconds', out="), out) as launcher:
        wait_for(lambda: out.exists() and len(RunFolder(out).checkpoint_names()) > 2)
        peers = peers_of(out)
        for process in [launcher.pid, *peers]:
            os.kill(process, signal.SIGKILL)
        launcher.wait(HANG_SECONDS)
        wait_for(lambda: not any(map(is_running, peers)))
    before = proof_of(out).merged
    run = meshed(out, "epochs>=16", strategy=Gossip(), resume="latest")
    assert sorted(map(machine_of, run.summary["peers_averaged"])) == ["w1", "w2", "w3"]
    proof = proof_of(out)
    assert proof.faults == ()
    assert proof.merged == run.summary["samples_merged"] > before
    assert replay(out).difference is None


def test_partitioned_halves_save_one_model(tmp_path: Path) -> None:
    """The half that ends later saves neither a model nor a summary."""
    machines = [Machine("w1", 0.002), Machine("w2", 0.002), Machine("w3", 0.003), Machine("w4", 0.003)]
    chaos = Chaos((Fault("partition", at_versions=(200,)),))
    with pytest.warns(OddlotWarning) as warned:
        run = meshed(
            tmp_path,
            "epochs>=50",
            4,
            as_if=machines,
            chaos=chaos,
            checkpoint_every="0.5 seconds",
            job={"worker_init": be_impatient},
        )
    assert {one.message.code for one in warned if isinstance(one.message, OddlotWarning)} == {
        "samples_left_out"
    }
    assert set(run.summary["peers_averaged"]) in ({"w1", "w2"}, {"w3", "w4"})
    assert RunFolder(tmp_path).model.exists()
    proof = RunReport.read(tmp_path).proof
    assert {fault.code for fault in proof.faults} == {"not_merged"}
    assert proof.left_out == run.summary["samples_left_out"] > 0


@pytest.mark.long
def test_mesh_with_only_joining_peers_ends(tmp_path: Path) -> None:
    """Peers that ask each other for a state end if no peer has a state."""
    out = tmp_path / "run"
    with program("-c", LAUNCH.replace("workers=3", "workers=2").replace("* 3", "* 2"), out) as launcher:
        wait_for(lambda: len(RunFolder(out).logs()) == 2)
        wait_for(lambda: len(peers_of(out)) == 2)
        first, second = peers_of(out)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: bool(set(peers_of(out)) - {first, second}))
        os.kill(second, signal.SIGKILL)
        assert launcher.wait(HANG_SECONDS) == 1


def proof_of(folder: Path) -> Proof:
    """Return the audit of all peers' logs."""
    return prove_run(RunFolder(folder), SAMPLES)


@pytest.mark.long
def test_sigterm_saves_the_model(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with program("-c", LAUNCH, out) as launcher:
        wait_for(lambda: len(RunFolder(out).logs()) == 3)
        peers = peers_of(out)
        os.kill(launcher.pid, signal.SIGTERM)
        launcher.wait(HANG_SECONDS)
    assert RunFolder(out).model.exists()
    assert not any(map(is_running, peers))


def fails(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Raise an error, as a faulty training step."""
    raise ValueError("of no use")


def test_user_error_ends_the_run_and_all_peers(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="of no use") as caught:
        meshed(tmp_path, job={"training_step": fails})
    assert caught.value.code == "user_code_failed"
    assert "of no use" in RunReport.read(tmp_path).summary["ended"]
    wait_for(lambda: not any(map(is_running, peers_of(tmp_path))))


@pytest.mark.filterwarnings("ignore:the saved model lacks")  # samples that were not reassigned yet
def test_hung_and_ended_peers_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One peer holds the GIL, one waits forever, one is stopped, one is ended by the job's code, and one hangs in an
    evaluation.

    The processes that they have started are ended too.
    """
    monkeypatch.setattr(subprocess, "Popen", FRESH)
    monkeypatch.setattr(task_timeouts, "HUNG_SECONDS", 6.0)
    monkeypatch.setattr(task_timeouts, "HUNG_TIMEOUTS", 1.0)
    mask(node=r"w\d(\.\d)?(?= )")
    notes, joined, lost = tmp_path / "notes", set[str](), set[str]()
    notes.mkdir()

    def stop_once_all_are_replaced(record: Record) -> None:
        match record.event:
            case PeerJoined(peer):
                joined.add(peer)
                lost.discard(peer)  # it was only busy
            case PeerLost(peer):
                lost.add(peer)
        replacements = sum("." in peer for peer in joined)
        all_there = len({machine_of(peer) for peer in joined - lost}) == 4
        if replacements >= len(HANGS) and all_there and all((notes / str(row)).exists() for row in HANGS):
            raise StopRun

    with warns("peer_hung"), warns("worker_hung"), warns("peer_work_hung", work="evaluation"):
        meshed(
            tmp_path / "run",
            "seconds>=300",
            workers=4,
            callbacks=[stop_once_all_are_replaced],
            job={
                "train_data": Hanging(notes, SAMPLES, TRAINED),
                "eval_data": Hanging(notes, 50, EVALUATED),
                "worker_init": be_impatient,
            },
            as_if=[Machine(f"w{number}", 0.01) for number in (1, 2, 3, 4)],
        )
    summary = read_ending(RunFolder(tmp_path / "run"))
    assert summary["seconds"] < 300
    assert {machine_of(peer) for peer in summary["peers_averaged"]} == {"w1", "w2", "w3", "w4"}
    pids = [int(pid) for row in HANGS for pid in (notes / str(row)).read_text().split()]
    wait_for(lambda: not any(map(is_running, pids)))


def another_model() -> nn.Module:
    """Return a model with another size in every process."""
    return nn.Linear(2, 2 + os.getpid() % 97)


def test_peers_with_different_models_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="another model") as caught:
        meshed(tmp_path, job={"model": another_model, "training_step": _sum})
    assert (caught.value.code, caught.value.fields["by"] in {"w1", "w2", "w3"}) == ("peer_rejected", True)


def _sum(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    loss: Tensor = model(batch[0]).square().mean()
    return loss


def test_ray_rejects_mesh_strategies(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from oddlot import Ray

    with raises(UsageError, "engine_without_mesh"):
        fit(a_job(count=SAMPLES), Gossip(), Ray(2), until="epochs>=1")
