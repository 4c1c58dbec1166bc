"""The launcher, with stand-ins for peers."""

import os
import signal
from ast import literal_eval
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from oddlot import Local
from oddlot.engines.local.fork_client import ForkClient
from oddlot.engines.local.processes import START_SECONDS
from oddlot.engines.mesh.launcher import Launcher
from oddlot.engines.mesh.process import replaced_file
from tests.engines.mesh.stand_in import setup, stand_in
from tests.engines.mesh.waiting import is_running, wait_for
from tests.processes import HANG_SECONDS
from tests.transcripts import mask, warns

pytestmark = pytest.mark.usefixtures("warm_start", "fork_server")


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Return the launcher of two stand-ins that have started."""
    with ExitStack() as closing:
        launcher = Launcher(setup(tmp_path, stand_in), Local(2).mesh.begin(closing), ["w1", "w2"])
        closing.callback(launcher.close)
        launcher.start_all()
        yield launcher


def watch_until(launcher: Launcher, is_so: Callable[[], bool]) -> None:
    """Run the launcher's checks until the condition holds."""

    def look() -> bool:
        launcher.pause()
        launcher.replace(launcher.newly_ended())
        return is_so()

    wait_for(look)


def age(launcher: Launcher, node: str, seconds: float) -> None:
    """Run the launcher's checks as if a peer had been silent for `seconds`, until the peer is lost."""

    def is_gone() -> bool:
        if (peer := launcher.running.get(node)) is not None:
            peer.heard_at = peer.since = launcher.now - seconds
        return node not in launcher.running

    watch_until(launcher, is_gone)


def test_replacement_that_freezes_at_start_is_replaced(launcher: Launcher, tmp_path: Path) -> None:
    launcher.work.strikes["0:5"] = 2
    launcher.signal("w2", signal.SIGKILL)
    watch_until(launcher, lambda: "w2.2" in launcher.running and launcher.running["w2.2"].pid > 0)
    assert launcher.begun == ["w1"]
    assert [replaced_file(tmp_path, node).exists() for node in ("w1", "w2", "w2.2")] == [False, True, False]
    with warns("start_hung", node="w2.2"):
        age(launcher, "w2.2", START_SECONDS + 1)
    watch_until(launcher, lambda: "w2.3" in launcher.begun)
    wait_for(lambda: launcher.output_of("w2.3").endswith("\n"))
    message = literal_eval(launcher.output_of("w2.3"))
    assert (list(message["peers"]), message["join"], message["strikes"]) == (["w1"], True, {"0:5": 2})


def test_frozen_peer_is_killed_and_replaced(launcher: Launcher) -> None:
    mask(node=r"w\d(?= )")
    watch_until(launcher, lambda: launcher.running["w1"].step_seconds > 0)
    process = launcher.running["w1"].pid
    launcher.signal("w1", signal.SIGSTOP)
    with warns("peer_hung", node="w1"):
        age(launcher, "w1", 31.0)
    wait_for(lambda: not is_running(process))
    watch_until(launcher, lambda: "w1.2" in launcher.running and launcher.running["w1.2"].pid > 0)


def test_shutdown_does_not_wait_for_a_starting_peer(launcher: Launcher) -> None:
    """The starting peer replaces a peer that ended at the end of the run."""
    began = launcher.now
    late = launcher.spawn(0, joins=True)
    for node in launcher.begun:
        launcher.signal(node, signal.SIGKILL)
    launcher.wait_for_end(2 * HANG_SECONDS)
    assert launcher.now < began + HANG_SECONDS
    assert not launcher.running
    wait_for(lambda: not (late.pid and is_running(late.pid)))


def test_peers_survive_a_killed_fork_server(tmp_path: Path) -> None:
    """Ends of peers are still detected, and another fork server starts replacements."""
    fork_server = ForkClient()
    launcher = Launcher(setup(tmp_path, stand_in), fork_server, ["w1", "w2"])
    try:
        launcher.start_all()
        pids, server = launcher.pids, fork_server.process.pid
        os.kill(server, signal.SIGKILL)
        with warns("fork_server_restarted"):
            watch_until(launcher, lambda: fork_server.process.pid != server)
        assert (launcher.begun, all(map(is_running, pids))) == (["w1", "w2"], True)
        launcher.signal("w2", signal.SIGKILL)
        watch_until(launcher, lambda: "w2.2" in launcher.running)
        wait_for(lambda: not is_running(pids[1]))
    finally:
        launcher.close()
        fork_server.close()
    wait_for(lambda: not any(map(is_running, pids)))
    assert not writers(tmp_path), "also a peer whose start the fork server had not reported is ended with it"


def writers(folder: Path) -> list[str]:
    """Return the processes with stdout in a file of this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            found += [process.name] if (process / "fd/1").readlink().parent == folder else []
    return found
