"""Faults of a simulated mesh: lost peers, a network partition, and invalid numbers."""

import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from oddlot import (
    SGD,
    AdaptiveGossip,
    Callback,
    Gossip,
    Local,
    Machine,
    Simulated,
    StopRun,
    Strategy,
    accuracy,
    replay,
)
from oddlot.checkpoint import background_writer
from oddlot.checkpoint.format import TENSORS, newest, save, saved
from oddlot.core.commands import Average, Dispatch
from oddlot.core.events import Arrived, FaultInjected, GoalReached, ModelRejected, PeerLost
from oddlot.core.records import Record
from oddlot.core.support.errors import JobError, OddlotWarning
from oddlot.engines.host import Envelope
from oddlot.engines.mesh.messages import ModelForAverage, ModelMessage, PeerMessage, Tensors
from oddlot.engines.mesh.network_faults import corrupted
from oddlot.engines.mesh.simulated import SimulatedMesh, SimulatedPort
from oddlot.engines.simulated import stall_checks
from oddlot.engines.simulated.task_execution import TaskExecution
from oddlot.engines.simulated.worker import SimulatedWorker
from oddlot.faults import Chaos, Fault
from oddlot.history.callback import RunProgress
from oddlot.history.peer_audit import prove_run
from oddlot.history.run_folder import RunFolder
from oddlot.history.run_outcome import FAILED
from oddlot.machines import Deterministic, Lifetime
from oddlot.report.run_report import RunReport
from oddlot.run.fit import Interrupted
from oddlot.run.session import HUNG_MEASURE_SECONDS
from oddlot.strategies.support.peer_averaging import MIN_WEIGHT
from tests.run.test_damage import steep
from tests.run.test_mesh import SAMPLES, STEP_SECONDS, gossiped, peers
from tests.transcripts import raises, warns

pytestmark = pytest.mark.usefixtures("warm_start")
FAULTS = [
    Fault("corrupt", machine="m1", at_seconds=(0.05,)),
    Fault("drop", machine="m2", at_seconds=(0.06,)),
    Fault("delay", machine="m3", at_seconds=(0.07,), delay_seconds=0.05),
    Fault("slow", machine="m0", at_seconds=(0.08,), factor=2.0, for_seconds=0.1),
    Fault("freeze", machine="m2", at_seconds=(0.5,), for_seconds=8.0),
    Fault("leave", machine="m3", at_seconds=(0.3,)),
    Fault("kill", machine="m1", at_seconds=(0.4,)),
]


def test_mesh_survives_every_fault(tmp_path: Path) -> None:
    on = peers(step_seconds=0.03, seconds_to_return=0.1)
    run = gossiped(
        Gossip(reply_timeout_seconds=1.0), on, until="seconds>=15", out=tmp_path, chaos=Chaos(tuple(FAULTS))
    )
    events = [record.event for record in run.records]
    assert sorted(e.kind for e in events if isinstance(e, FaultInjected)) == sorted(
        fault.kind for fault in FAULTS
    )
    rejected = [(r.event.peer, r.event.code) for r in run.records if isinstance(r.event, ModelRejected)]
    assert rejected == [("m1", "numbers_not_finite")]
    assert {"m1", "m3"} <= {e.peer for e in events if isinstance(e, PeerLost)}
    assert set(run.summary["peers_averaged"]) == {"m0", "m1.2", "m2", "m3.2"}
    assert prove_run(RunFolder(tmp_path), SAMPLES).faults == ()
    assert replay(tmp_path).difference is None


def test_partitioned_halves_train_and_agree_afterwards() -> None:
    fault = Fault("partition", at_seconds=(1.0,), for_seconds=8.0)
    run = gossiped(Gossip(), peers(step_seconds=0.04), until="seconds>=20", chaos=Chaos((fault,)))
    lost = {(r.peer, r.event.peer) for r in run.records if isinstance(r.event, PeerLost)}
    assert lost == {(a, b) for a in ("m0", "m1") for b in ("m2", "m3")} | {
        (b, a) for a in ("m0", "m1") for b in ("m2", "m3")
    }
    merges = {
        r.peer for r in run.records if 6.0 < r.now < 9.0 and any(isinstance(a, Average) for a in r.actions)
    }
    assert merges == {"m0", "m1", "m2", "m3"}
    assert set(run.summary["peers_averaged"]) == {"m0", "m1", "m2", "m3"}
    assert run.summary["disagreement"] < 0.05
    for peer in ("m0", "m1", "m2", "m3"):
        times = [
            r.now for r in run.records if r.peer == peer and r.now > 9.5 and isinstance(r.event, Arrived)
        ]
        assert max(b - a for a, b in pairwise(times)) < 1.0, "no peer waits for one that ignores it"


def test_request_lost_in_a_short_partition_times_out_soon() -> None:
    """The first request may wait for 30 s, and sets an alarm for that time. Later requests set their own alarms."""
    on = Simulated([Machine(f"m{number}", 0.003) for number in range(4)])
    chaos = Chaos((Fault("partition", at_seconds=(1.0,), for_seconds=1.5),))
    run = gossiped(Gossip(), on, until="seconds>=8", chaos=chaos)
    for peer in ("m0", "m1", "m2", "m3"):
        times = [r.now for r in run.records if r.peer == peer and isinstance(r.event, Arrived)]
        assert max(b - a for a, b in pairwise([*times, 8.0])) < 4.0


def test_failed_pushes_keep_their_weight() -> None:
    fault = Fault("partition", at_seconds=(0.5,), for_seconds=8.0)
    run = gossiped(Gossip(mode="push"), peers(2, 0.04), until="seconds>=14", chaos=Chaos((fault,)))
    assert run.summary["disagreement"] < 0.05
    weights = [
        action.model.weight for r in run.records for action in r.actions if isinstance(action, Dispatch)
    ]
    assert min(weights) >= MIN_WEIGHT / 2


class PressesCtrlC(Callback):
    """A callback that presses Ctrl-C once all peers have trained."""

    def __init__(self) -> None:
        self.trained: set[str | None] = set()
        self.is_pressed, self.interrupts = False, 0

    def on_record(self, run: RunProgress, record: Record) -> None:
        if isinstance(record.event, Arrived):
            self.trained.add(record.peer)
        if len(self.trained) == 3 and not self.is_pressed:
            self.is_pressed = True
            os.kill(os.getpid(), signal.SIGINT)

    def on_interrupt(self, run: RunProgress) -> None:
        self.interrupts += 1


@pytest.mark.parametrize("on", [peers(3), Local(workers=3, threads=1)], ids=["simulated", "local"])
def test_ctrl_c_saves_the_average(on: Any, tmp_path: Path) -> None:
    presses = PressesCtrlC()
    with pytest.raises(Interrupted) as caught:
        gossiped(Gossip(), on, until="epochs>=10000", out=tmp_path, callbacks=[presses])
    run = caught.value.run
    assert presses.interrupts == 1
    assert set(run.summary["peers_averaged"]) == set(on.names)
    newest = saved(RunFolder(tmp_path).storage)[-1]
    weights = load_file(tmp_path / "checkpoints" / newest / TENSORS)["weights/0"]
    first = next(run.model.parameters()).flatten()
    assert torch.equal(weights[: first.numel()], first)


def test_stop_run_is_the_reason_after_the_first_peer_finished() -> None:
    """A run that a user has stopped must not appear to have reached its goal."""

    def stop(record: Record) -> None:
        if isinstance(record.event, GoalReached) and record.peer == "m0":
            raise StopRun("enough")

    on = Simulated([Machine("m0", 0.001), Machine("m1", 0.01)])
    run = gossiped(Gossip(), on, until="epochs>=20", callbacks=[stop])
    assert run.ended == "stopped: enough"
    assert run.summary["epochs"] < 20


def test_large_weights_and_missing_metrics_warn() -> None:
    job = {"optimizer": SGD(1e37), "metrics": {"accuracy": accuracy, "odd": lambda *_: math.nan}}
    with warns("weights_too_large"), warns("figures_without_a_number", figures=["odd"]):
        gossiped(Gossip(), peers(2), "epochs>=1", job=job)


def test_infinite_weights_are_neither_saved_nor_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last valid checkpoint is written completely, even if the disk is slow."""

    def slowly(*arguments: Any) -> str:
        time.sleep(0.3)
        return save(*arguments)

    monkeypatch.setattr(background_writer, "save", slowly)
    job = {"model": lambda: nn.Linear(2, 2, bias=False), "training_step": steep, "optimizer": SGD(lr=1.0)}
    with raises(JobError, "weights_not_finite"):
        gossiped(Gossip(), peers(2), out=tmp_path, job=job, checkpoint_every="1 versions")
    assert not RunFolder(tmp_path).model.exists()
    assert newest(RunFolder(tmp_path).storage).load().tensors["weights/0"].isfinite().all()


def test_failed_run_has_a_summary_with_the_reason(tmp_path: Path) -> None:
    def fails(model: nn.Module, batch: Any) -> Tensor:
        raise ValueError("of no use")

    with raises(JobError, "user_code_failed"):
        gossiped(Gossip(), out=tmp_path, job={"training_step": fails})
    ended = RunReport.read(tmp_path).summary["ended"]
    assert (ended.startswith(FAILED), "of no use" in ended) == (True, True)
    run = gossiped(Gossip(), out=tmp_path, resume="latest")
    assert run.ended == "epochs>=3"


Wrong = Callable[[PeerMessage, Tensors | None], tuple[PeerMessage, Tensors | None]]


def _not_finite(message: PeerMessage, tensors: Tensors | None) -> tuple[PeerMessage, Tensors | None]:
    return message, corrupted(tensors) if isinstance(message, ModelForAverage) and tensors else tensors


def _no_weight(message: PeerMessage, tensors: Tensors | None) -> tuple[PeerMessage, Tensors | None]:
    if isinstance(message, ModelMessage):
        message = ModelMessage(replace(message.model, weight=float("nan")))
    return message, tensors


@pytest.mark.parametrize("wrong", [_not_finite, _no_weight])
def test_bad_numbers_of_a_peer_are_rejected(wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    send = SimulatedMesh.send

    def send_wrong(
        mesh: SimulatedMesh, sender: str, receiver: str, message: PeerMessage, tensors: Tensors | None
    ) -> None:
        send(mesh, sender, receiver, *(wrong(message, tensors) if sender == "m2" else (message, tensors)))

    monkeypatch.setattr(SimulatedMesh, "send", send_wrong)
    with pytest.warns(OddlotWarning) if wrong is _not_finite else nullcontext():
        run = gossiped(Gossip(reply_timeout_seconds=0.2))
    rejected = [r.event for r in run.records if isinstance(r.event, ModelRejected)]
    assert {(event.peer, event.code) for event in rejected} == {("m2", "numbers_not_finite")}
    assert run.summary["models_rejected"] == {"m2": len(rejected)}
    assert run.summary["loss"] < 1.0
    assert ("m2" in run.summary["peers_averaged"]) == (wrong is not _not_finite)


@pytest.mark.parametrize("killed_at", [(0.1,), pytest.param((0.02, 0.3), marks=pytest.mark.long), (0.55,)])
@pytest.mark.parametrize(
    "strategy", [Gossip(), Gossip(mode="push_pull"), AdaptiveGossip(threshold=1e9)], ids=str
)
def test_replacement_processes_samples_that_no_model_includes(
    strategy: Strategy, killed_at: tuple[float, ...], tmp_path: Path
) -> None:
    chaos = Chaos((Fault("kill", machine="m1", at_seconds=killed_at),))
    run = gossiped(strategy, peers(seconds_to_return=0.3), until="epochs>=20", out=tmp_path, chaos=chaos)
    proof = prove_run(RunFolder(tmp_path), SAMPLES)
    assert (proof.faults, proof.whole, proof.left_out) == ((), 20, 0)
    assert run.summary["samples_left_out"] == 0
    assert replay(tmp_path).difference is None


def test_each_replacement_is_awaited(tmp_path: Path) -> None:
    """The second replacement joins 40 s after the other peers have finished."""
    chaos = Chaos((Fault("kill", machine="m1", at_seconds=(0.1, 20.2)),))
    run = gossiped(Gossip(), peers(seconds_to_return=20.0), until="epochs>=20", out=tmp_path, chaos=chaos)
    assert "m1.3" in run.summary["peers_averaged"]
    assert run.summary["samples_left_out"] == 0


class Large(nn.Linear):
    """A model with a parameter that is too large for float16."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.scale = nn.Parameter(torch.tensor([1e6]))


def test_rejecting_every_model_warns(tmp_path: Path) -> None:
    with warns("nothing_exchanged", models=10):
        run = gossiped(Gossip(), peers(2), "epochs>=1", out=tmp_path, codec="fp16", job={"model": Large})
    assert (run.summary["exchanges"], run.summary["models_rejected"]) == (0, {"m0": 5, "m1": 5})
    assert len(run.summary["peers_averaged"]) == 2, "the final average has exact weights"
    assert "all 10 models" in RunReport.read(tmp_path).verdict


def test_samples_of_a_peer_without_replacement_are_left_out(tmp_path: Path) -> None:
    chaos = Chaos((Fault("kill", machine="m1", at_seconds=(0.1,)),))
    with pytest.warns(OddlotWarning) as warned:
        run = gossiped(Gossip(), until="epochs>=20", out=tmp_path, chaos=chaos)
    left_out = run.summary["samples_left_out"]
    figures = RunReport.read(tmp_path)
    assert 18 * SAMPLES // 4 < left_out < 20 * SAMPLES // 4
    given = [w.message for w in warned if isinstance(w.message, OddlotWarning)]
    assert [one.fields for one in given if one.code == "samples_left_out"] == [
        {"samples": left_out, "peers": ["m1"]}
    ]
    assert {fault.code for fault in figures.proof.faults} == {"not_merged"}
    assert (figures.plain()["exactly_once"], figures.plain()["samples_left_out"]) == (False, left_out)


def test_model_lacks_the_samples_of_the_other_half(tmp_path: Path) -> None:
    chaos = Chaos((Fault("partition", at_seconds=(0.1,)),))
    on = Simulated([Machine(f"m{i}", 0.01 / 8 * (1 + i // 2)) for i in range(4)])
    with warns("samples_left_out", peers=["m2", "m3"]):
        run = gossiped(Gossip(), on, until="epochs>=60", out=tmp_path, chaos=chaos)
    proof = RunReport.read(tmp_path).proof
    assert len(run.summary["peers_averaged"]) == 2
    assert 25 * SAMPLES < proof.left_out == run.summary["samples_left_out"] <= 30 * SAMPLES
    assert proof.merged == 60 * SAMPLES - proof.left_out
    assert (run.summary["peers_missing"], proof.missing) == (["m2", "m3"], ("m2", "m3"))
    assert "samples of m2, m3" in str(proof)


def test_last_peer_finishes_alone() -> None:
    faults = tuple(Fault("kill", machine=f"m{i}", at_seconds=(0.1 * i,)) for i in (1, 2, 3))
    with pytest.warns(OddlotWarning):
        run = gossiped(Gossip(), until="epochs>=20", chaos=Chaos(faults))
    assert run.summary["peers_averaged"] == ["m0"]
    assert run.ended == "epochs>=20"


def test_next_peer_leads_when_the_first_is_lost() -> None:
    fault = Fault("kill", machine="m0", at_seconds=(0.1,))
    with pytest.warns(OddlotWarning):
        run = gossiped(Gossip(), until="epochs>=20", chaos=Chaos((fault,)))
    assert run.summary["peers_averaged"][0] == "m1"
    assert run.accuracy is not None


def test_models_of_a_replaced_peer_are_rejected(tmp_path: Path) -> None:
    """The models wait at frozen peers, while the replacement takes over the samples that no model includes."""
    freezes = (Fault("freeze", machine=name, at_seconds=(0.1,), for_seconds=1.5) for name in ("m1", "m3"))
    chaos = Chaos((*freezes, Fault("kill", machine="m2", at_seconds=(0.35,))))
    on = peers(seconds_to_return=0.3)
    run = gossiped(Gossip(mode="push", topology="ring"), on, until="epochs>=20", out=tmp_path, chaos=chaos)
    proof = prove_run(RunFolder(tmp_path), SAMPLES)
    assert (proof.faults, proof.whole, proof.left_out) == ((), 20, 0)
    assert replay(tmp_path).difference is None
    assert {r.peer for r in run.records} == {"m0", "m1", "m2", "m2.2", "m3"}


@pytest.mark.filterwarnings("ignore")  # warnings about the task that does not end
def test_peer_with_a_hung_task_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, lost = SimulatedMesh._answer, list[TaskExecution]()

    def loses_first(
        mesh: SimulatedMesh, worker: SimulatedWorker, execution: TaskExecution
    ) -> Envelope | None:
        if worker.node == "m1" and not lost:
            lost.append(execution)
            return None
        return answer(mesh, worker, execution)

    monkeypatch.setattr(SimulatedMesh, "_answer", loses_first)
    run = gossiped(Gossip(), peers(2), until="epochs>=4")
    assert run.summary["peers_averaged"] == ["m0", "m1.2"]
    assert not run.summary["samples_left_out"]


def test_lifetimes_too_short_for_a_task_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall_checks, "MAX_ATTEMPTS", 0)
    on = peers(2, lifetime=Lifetime(STEP_SECONDS / 2, Deterministic()), seconds_to_return=0.0)
    with raises(JobError, "lifetimes_too_short", workers=21):
        gossiped(Gossip(), on)


def test_hung_final_evaluation_does_not_delay_a_time_goal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluate = SimulatedPort.evaluate

    def evaluate_before_the_end(port: SimulatedPort, version: int, weights: Any) -> None:
        if port.mesh.now < 2.0:
            evaluate(port, version, weights)

    monkeypatch.setattr(SimulatedPort, "evaluate", evaluate_before_the_end)
    with warns("final_not_measured", seconds=HUNG_MEASURE_SECONDS):
        run = gossiped(Gossip(), peers(), until="seconds>=2")
    assert HUNG_MEASURE_SECONDS <= run.summary["seconds"] < HUNG_MEASURE_SECONDS + 10
