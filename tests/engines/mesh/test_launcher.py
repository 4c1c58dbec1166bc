"""The launcher with programs that stand in for peers: they start in milliseconds."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oddlot.engines.local.processes import START_SECONDS
from oddlot.engines.mesh.launcher import Launcher, clock, replaced_file
from tests.engines.mesh.waiting import is_running, wait_for
from tests.transcripts import mask, warns


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """A launcher of two stand-ins that have started."""
    with (tmp_path / "parcel").open("wb") as parcel:
        stand_in = "tests.engines.mesh.stand_in"
        launcher = Launcher(stand_in, ["w1", "w2"], [parcel.fileno()], tmp_path, True, clock())
        try:
            launcher.start_all()
            yield launcher
        finally:
            launcher.close()


def watch_until(launcher: Launcher, is_so: Callable[[], bool]) -> None:
    """Look at the peers until this is so."""

    def look() -> bool:
        launcher.replace(launcher.check())
        return is_so()

    wait_for(look)


def age(launcher: Launcher, node: str, seconds: float) -> None:
    """Look at the peers as if one had been silent for so long, until it is gone."""

    def is_gone() -> bool:
        if (peer := launcher.running.get(node)) is not None:
            peer.life.heard_at = launcher.now - seconds
        return node not in launcher.running

    watch_until(launcher, is_gone)


def test_a_replacement_that_freezes_before_it_is_ready_is_replaced(
    launcher: Launcher, tmp_path: Path
) -> None:
    launcher.work.strikes["0:5"] = 2
    launcher.signal("w2", signal.SIGKILL)
    watch_until(launcher, lambda: "w2.2" in launcher.running)
    assert launcher.begun == ["w1"]
    assert [replaced_file(tmp_path, node).exists() for node in ("w1", "w2", "w2.2")] == [False, True, False]
    with warns("peer_hung", node="w2.2"):
        age(launcher, "w2.2", START_SECONDS + 1)
    watch_until(launcher, lambda: "w2.3" in launcher.begun)
    wait_for(lambda: launcher.output_of("w2.3").endswith("\n"))
    told = json.loads(launcher.output_of("w2.3"))
    assert (list(told["peers"]), told["join"], told["strikes"]) == (["w1"], True, {"0:5": 2})


def test_a_stopped_peer_is_killed_and_replaced(launcher: Launcher) -> None:
    mask(node=r"w\d(?= )")
    watch_until(launcher, lambda: launcher.running["w1"].life.step_seconds > 0)
    process = launcher.running["w1"].process.pid
    launcher.signal("w1", signal.SIGSTOP)
    with warns("peer_hung", node="w1"):
        age(launcher, "w1", 31.0)
    assert not is_running(process)
    watch_until(launcher, lambda: "w1.2" in launcher.running)
