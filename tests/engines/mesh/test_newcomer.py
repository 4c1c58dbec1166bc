"""A new peer without a running peer that it could join."""

import signal
import socket
from pathlib import Path
from typing import Any

from oddlot import Gossip, Local
from oddlot.engines.mesh.messages import StateRequest
from oddlot.engines.mesh.newcomer import LONGEST_SECONDS, Newcomer
from oddlot.history.run_folder import RunFolder
from oddlot.run.config import RunConfig
from oddlot.run.mesh import prepared_mesh
from oddlot.run.mesh_local import MeshLocal
from oddlot.run.spec import Recipe
from tests.engines.mesh.waiting import wait_for
from tests.fits import a_job


class Port:
    """Notes which peers were asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def send(self, peer: str, message: Any, tensors: Any = None) -> None:
        assert isinstance(message, StateRequest)
        self.asked.append(peer)


def newcomer(port: Any) -> Newcomer:
    """One that asks w1 or w2."""
    return Newcomer(port, ["w1", "w2"], lambda *_: None, 0.0, "")


def test_a_newcomer_asks_the_next_peer_when_one_has_ended() -> None:
    port = Port()
    new = newcomer(port)
    assert port.asked == ["w1"]
    new.gone("w1")
    new.ring(1.0)
    assert (port.asked, new.is_alone) == (["w1", "w2"], False)
    new.gone("w2")
    new.ring(2.0)
    assert new.is_alone


def test_a_newcomer_without_a_reply_gives_up() -> None:
    new = newcomer(Port())
    new.ring(LONGEST_SECONDS - 1)
    assert not new.is_alone
    new.ring(LONGEST_SECONDS)
    assert new.is_alone


def test_a_newcomer_that_waits_ends_on_sigterm(tmp_path: Path) -> None:
    recipe = Recipe(a_job(), Gossip(), Local(workers=2, threads=1), RunConfig.of({"until": "epochs>=1"}))
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        prepared_mesh(recipe, RunFolder(tmp_path)) as mesh,
    ):
        assert isinstance(mesh, MeshLocal)
        silent.settimeout(60)
        launcher = mesh.launcher
        peer = launcher._spawn(0, joins=True)
        wait_for(lambda: launcher.check() == [] and bool(peer.address))
        peer.begin({"w2": f"127.0.0.1:{silent.getsockname()[1]}"}, {})
        silent.accept()[0].close()
        launcher.signal(peer.node, signal.SIGTERM)
        wait_for(lambda: launcher.check() == [peer])
        assert peer.process.returncode == 0
