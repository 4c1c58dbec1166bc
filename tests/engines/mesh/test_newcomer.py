"""New peers: without a running peer to join, and as the replacement of another peer."""

import signal
import socket
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oddlot import Gossip, Local
from oddlot.core.membership_messages import Ping
from oddlot.engines.mesh.messages import FromPeer, ModelForAverage, StateRequest, Tensors
from oddlot.engines.mesh.network_faults import NetworkFaults
from oddlot.engines.mesh.newcomer import LONGEST_SECONDS, Newcomer
from oddlot.engines.mesh.process import MeshProcess, replaced_file
from oddlot.history.run_folder import RunFolder
from oddlot.run.config import RunConfig
from oddlot.run.hosts_local import LocalHosts
from oddlot.run.mesh import prepared_mesh
from oddlot.run.recipe import Recipe
from tests.engines.mesh.waiting import wait_for
from tests.fits import a_job

pytestmark = pytest.mark.usefixtures("warm_start", "fork_server")


class Port:
    """A port that records the peers asked for their state."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def send(self, peer: str, message: Any, tensors: Any = None) -> None:
        assert isinstance(message, StateRequest)
        self.asked.append(peer)


def newcomer(port: Any) -> Newcomer:
    """Return a newcomer that can request the state of w1 and w2."""
    return Newcomer(port, ["w1", "w2"], lambda *_: None, 0.0, "")


def test_newcomer_asks_the_next_peer_when_one_has_ended() -> None:
    port = Port()
    new = newcomer(port)
    assert port.asked == ["w1"]
    new.gone("w1", 0.0)
    new.ring(1.0)
    assert (port.asked, new.is_alone) == (["w1", "w2"], False)
    new.gone("w2", 0.0)
    new.ring(2.0)
    assert new.is_alone


def test_newcomer_without_a_reply_starts_alone() -> None:
    new = newcomer(Port())
    new.ring(LONGEST_SECONDS - 1)
    assert not new.is_alone
    new.ring(LONGEST_SECONDS)
    assert new.is_alone


def test_waiting_newcomer_ends_on_sigterm(tmp_path: Path) -> None:
    recipe = Recipe(a_job(), Gossip(), Local(workers=2, threads=1), RunConfig.of({"until": "epochs>=1"}))
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        prepared_mesh(recipe, RunFolder(tmp_path)) as mesh,
    ):
        assert isinstance(mesh, LocalHosts)
        silent.settimeout(60)
        launcher = mesh.launcher
        peer = launcher.spawn(0, joins=True)

        def has_ended() -> bool:
            launcher.pause()
            return launcher.newly_ended() == [peer]

        wait_for(lambda: not has_ended() and peer.ready)
        launcher.begin(peer, {"w2": f"127.0.0.1:{silent.getsockname()[1]}"})
        silent.accept()[0].close()
        launcher.signal(peer.node, signal.SIGTERM)
        wait_for(has_ended)
        assert peer.exit_code == 0


def test_weights_of_a_replaced_peer_are_ignored(tmp_path: Path) -> None:
    """Such weights may be queued at a stopped peer while the replacement reads the samples of other models."""
    got, released = list[str](), list[str]()
    peer = SimpleNamespace(receive=lambda item, _: got.append(item.sender))
    process: Any = SimpleNamespace(
        setup=SimpleNamespace(folder=tmp_path),
        port=SimpleNamespace(disturbance=NetworkFaults()),
        peer=peer,
        _follow=lambda _: None,
    )
    process._is_replaced = partial(MeshProcess._is_replaced, process)
    replaced_file(tmp_path, "w2").touch()
    weights: Any = None
    for sender in ("w1", "w2", "w2.2"):
        tensors = Tensors(weights, partial(released.append, sender))
        MeshProcess.receive(process, FromPeer(sender, ModelForAverage(1, 5), tensors=tensors), 0.0)
    MeshProcess.receive(process, FromPeer("w2", Ping(1)), 0.0)
    assert (got, released) == (["w1", "w2.2", "w2"], ["w2"])
