"""Faults of a simulated mesh: lost peers, a cut network, numbers that cannot be used."""

import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from oddlot import AdaptiveGossip, Gossip, Local, Machine, Simulated, Strategy, replay
from oddlot.checkpoint.format import TENSORS, saved
from oddlot.core.commands import Average, Dispatch
from oddlot.core.errors import OddlotWarning
from oddlot.core.events import Arrived, ModelRejected, PeerLost, Struck
from oddlot.core.records import Record
from oddlot.engines.mesh.messages import ModelMessage, ModelRequest, PeerMessage, Snapshot, Tensors
from oddlot.engines.mesh.network_faults import corrupted
from oddlot.engines.mesh.simulated import SimulatedMesh
from oddlot.faults import Chaos, Fault
from oddlot.history.peer_audit import prove_peers
from oddlot.history.run_folder import RunFolder
from oddlot.report.run_report import Figures
from oddlot.run.fit import Interrupted
from oddlot.strategies.support.peer_averaging import MIN_WEIGHT
from tests.run.test_mesh import SAMPLES, gossiped, peers

FAULTS = [
    Fault("corrupt", machine="m1", at_seconds=(0.05,)),
    Fault("drop", machine="m2", at_seconds=(0.06,)),
    Fault("delay", machine="m3", at_seconds=(0.07,), delay_seconds=0.05),
    Fault("slow", machine="m0", at_seconds=(0.08,), factor=2.0, for_seconds=0.1),
    Fault("freeze", machine="m2", at_seconds=(0.5,), for_seconds=8.0),
    Fault("leave", machine="m3", at_seconds=(0.3,)),
    Fault("kill", machine="m1", at_seconds=(0.4,)),
]


def test_every_fault_is_survived(tmp_path: Path) -> None:
    on = peers(seconds_to_return=0.1)
    run = gossiped(
        Gossip(answer_seconds=1.0), on, until="seconds>=15", out=tmp_path, chaos=Chaos(tuple(FAULTS))
    )
    events = [record.event for record in run.records]
    assert sorted(e.kind for e in events if isinstance(e, Struck)) == sorted(fault.kind for fault in FAULTS)
    rejected = [(r.event.peer, r.event.code) for r in run.records if isinstance(r.event, ModelRejected)]
    assert rejected == [("m1", "numbers_not_finite")]
    assert {"m1", "m3"} <= {e.peer for e in events if isinstance(e, PeerLost)}
    assert set(run.summary["peers_averaged"]) == {"m0", "m1.2", "m2", "m3.2"}
    assert prove_peers(RunFolder(tmp_path), SAMPLES).faults == ()
    assert replay(tmp_path).difference is None


def test_the_halves_of_a_partition_train_on_and_agree_afterwards() -> None:
    fault = Fault("partition", at_seconds=(1.0,), for_seconds=8.0)
    run = gossiped(Gossip(), until="seconds>=20", chaos=Chaos((fault,)))
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


def test_a_request_that_a_short_partition_loses_is_soon_given_up() -> None:
    """The first request may wait for 30 s, and sets an alarm for then. Later ones set alarms of their own."""
    on = Simulated([replace(one, seconds_per_sample=0.003) for one in peers().machines])
    chaos = Chaos((Fault("partition", at_seconds=(1.0,), for_seconds=1.5),))
    run = gossiped(Gossip(), on, until="seconds>=8", chaos=chaos)
    for peer in ("m0", "m1", "m2", "m3"):
        times = [r.now for r in run.records if r.peer == peer and isinstance(r.event, Arrived)]
        assert max(b - a for a, b in pairwise([*times, 8.0])) < 4.0


def test_pushes_into_a_cut_network_keep_their_weight() -> None:
    fault = Fault("partition", at_seconds=(0.5,), for_seconds=8.0)
    run = gossiped(Gossip(mode="push"), peers(2), until="seconds>=14", chaos=Chaos((fault,)))
    assert run.summary["disagreement"] < 0.05
    weights = [
        action.model.weight for r in run.records for action in r.actions if isinstance(action, Dispatch)
    ]
    assert min(weights) >= MIN_WEIGHT / 2


class PressesCtrlC:
    """An observer that presses Ctrl-C once all peers train."""

    def __init__(self) -> None:
        self.trained: set[str | None] = set()
        self.is_pressed, self.stopping_heard = False, 0

    def __call__(self, record: Record) -> None:
        if isinstance(record.event, Arrived):
            self.trained.add(record.peer)
        if len(self.trained) == 3 and not self.is_pressed:
            self.is_pressed = True
            os.kill(os.getpid(), signal.SIGINT)

    def stopping(self) -> None:
        self.stopping_heard += 1


@pytest.mark.parametrize("on", [peers(3), Local(workers=3, threads=1)], ids=["simulated", "local"])
def test_ctrl_c_saves_the_average(on: Any, tmp_path: Path) -> None:
    observer = PressesCtrlC()
    with pytest.raises(Interrupted) as caught:
        gossiped(Gossip(), on, until="epochs>=10000", out=tmp_path, observers=[observer])
    run = caught.value.run
    assert observer.stopping_heard == 1
    assert set(run.summary["peers_averaged"]) == set(on.names)
    newest = saved(RunFolder(tmp_path).storage)[-1]
    weights = load_file(tmp_path / "checkpoints" / newest / TENSORS)["weights/0"]
    first = next(run.model.parameters()).flatten()
    assert torch.equal(weights[: first.numel()], first)


Wrong = Callable[[PeerMessage, Tensors | None], tuple[PeerMessage, Tensors | None]]


def _not_finite(message: PeerMessage, tensors: Tensors | None) -> tuple[PeerMessage, Tensors | None]:
    return message, corrupted(tensors) if isinstance(message, Snapshot) and tensors else tensors


def _no_weight(message: PeerMessage, tensors: Tensors | None) -> tuple[PeerMessage, Tensors | None]:
    if isinstance(message, ModelMessage):
        message = ModelMessage(replace(message.model, weight=float("nan")))
    return message, tensors


def _no_such_layer(message: PeerMessage, tensors: Tensors | None) -> tuple[PeerMessage, Tensors | None]:
    return replace(message, layers=(99,)) if isinstance(message, ModelRequest) else message, tensors


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (_not_finite, "numbers_not_finite"),
        (_no_weight, "numbers_not_finite"),
        (_no_such_layer, "no_such_layer"),
    ],
)
def test_bad_numbers_of_a_peer_are_rejected_with_its_name(
    wrong: Wrong, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = SimulatedMesh.send

    def send_wrong(
        mesh: SimulatedMesh, sender: str, receiver: str, message: PeerMessage, tensors: Tensors | None
    ) -> None:
        send(mesh, sender, receiver, *(wrong(message, tensors) if sender == "m2" else (message, tensors)))

    monkeypatch.setattr(SimulatedMesh, "send", send_wrong)
    with pytest.warns(OddlotWarning) if wrong is _not_finite else nullcontext():
        run = gossiped(Gossip(answer_seconds=0.2))
    rejected = [r.event for r in run.records if isinstance(r.event, ModelRejected)]
    assert {(event.peer, event.code) for event in rejected} == {("m2", code)}
    assert run.summary["models_rejected"] == {"m2": len(rejected)}
    assert run.summary["loss"] < 1.0
    assert ("m2" in run.summary["peers_averaged"]) == (wrong is not _not_finite)


@pytest.mark.parametrize("killed_at", [(0.1,), (0.02, 0.3), (0.55,)])
@pytest.mark.parametrize(
    "strategy", [Gossip(), Gossip(mode="push_pull"), AdaptiveGossip(threshold=1e9)], ids=str
)
def test_replacement_takes_over_what_no_other_model_includes(
    strategy: Strategy, killed_at: tuple[float, ...], tmp_path: Path
) -> None:
    chaos = Chaos((Fault("kill", machine="m1", at_seconds=killed_at),))
    run = gossiped(strategy, peers(seconds_to_return=0.3), until="epochs>=20", out=tmp_path, chaos=chaos)
    proof = prove_peers(RunFolder(tmp_path), SAMPLES)
    assert (proof.faults, proof.whole, proof.left_out) == ((), 20, 0)
    assert run.summary["samples_left_out"] == 0
    assert replay(tmp_path).difference is None


def test_samples_of_a_peer_without_replacement_are_left_out(tmp_path: Path) -> None:
    chaos = Chaos((Fault("kill", machine="m1", at_seconds=(0.1,)),))
    with pytest.warns(OddlotWarning) as warned:
        run = gossiped(Gossip(), until="epochs>=20", out=tmp_path, chaos=chaos)
    left_out = run.summary["samples_left_out"]
    figures = Figures.read(tmp_path)
    assert 18 * SAMPLES // 4 < left_out < 20 * SAMPLES // 4
    given = [w.message for w in warned if isinstance(w.message, OddlotWarning)]
    assert [one.fields for one in given if one.code == "samples_left_out"] == [{"samples": left_out}]
    assert {fault.code for fault in figures.proof.faults} == {"not_merged"}
    assert (figures.plain()["exactly_once"], figures.plain()["samples_left_out"]) == (False, left_out)


def test_model_of_one_half_of_a_partition_lacks_the_samples_of_the_other(tmp_path: Path) -> None:
    chaos = Chaos((Fault("partition", at_seconds=(0.1,)),))
    on = Simulated([Machine(f"m{i}", 0.01 / 8 * (1 + i // 2)) for i in range(4)])
    with pytest.warns(OddlotWarning):
        run = gossiped(Gossip(), on, until="epochs>=60", out=tmp_path, chaos=chaos)
    proof = Figures.read(tmp_path).proof
    assert len(run.summary["peers_averaged"]) == 2
    assert 25 * SAMPLES < proof.left_out == run.summary["samples_left_out"] <= 30 * SAMPLES
    assert proof.merged == 60 * SAMPLES - proof.left_out


def test_one_peer_that_is_left_finishes_alone() -> None:
    faults = tuple(Fault("kill", machine=f"m{i}", at_seconds=(0.1 * i,)) for i in (1, 2, 3))
    with pytest.warns(OddlotWarning):
        run = gossiped(Gossip(), until="epochs>=20", chaos=Chaos(faults))
    assert run.summary["peers_averaged"] == ["m0"]
    assert run.ended == "epochs>=20"


def test_the_next_peer_leads_when_the_first_is_lost() -> None:
    fault = Fault("kill", machine="m0", at_seconds=(0.1,))
    with pytest.warns(OddlotWarning):
        run = gossiped(Gossip(), until="epochs>=20", chaos=Chaos((fault,)))
    assert run.summary["peers_averaged"][0] == "m1"
    assert run.accuracy is not None
