"""Processes of peers: what they import, and where their output goes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oddlot import JobError
from oddlot.core.tasks import NodeId
from oddlot.engines.mesh import launcher as module
from oddlot.engines.mesh.launcher import Launcher
from oddlot.engines.mesh.signs_of_life import LifeReader


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[tuple[NodeId, int]]]:
    """Run a script in place of a peer until it ends, and return the processes that the launcher saw ending."""

    def begin(script: str) -> list[tuple[NodeId, int]]:
        (tmp_path / "for_peers").mkdir()
        (tmp_path / "for_peers" / "a_peer.py").write_text(script)
        monkeypatch.syspath_prepend(tmp_path / "for_peers")
        monkeypatch.setattr(module, "MODULE", "a_peer")
        launcher = Launcher(["w0"], [0], tmp_path, True, module.clock())
        peer = launcher._spawn(0)
        peer.process.wait()
        ended = launcher.check(replace=False)
        launcher.close()
        return ended

    return begin


def test_a_peer_imports_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[str], list[tuple[NodeId, int]]]
) -> None:
    (tmp_path / "platform.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [place for place in sys.path if place])
    assert [code for _, code in start("import platform")] == [0]


def test_the_output_of_a_peer_is_not_written_through_a_link(
    tmp_path: Path, start: Callable[[str], list[tuple[NodeId, int]]]
) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / "w0.log").symlink_to(target)
    (tmp_path / "w0-1.log").symlink_to(target)
    with pytest.raises(JobError) as raised:
        start("")
    assert (raised.value.code, target.read_text()) == ("unwritable_file", "kept")


def test_only_a_peer_with_an_error_of_its_own_ends_the_run(tmp_path: Path) -> None:
    """A peer that job code ends with another exit code is replaced."""
    codes = {code: Launcher(["w0"], [0], tmp_path, True, module.clock()) for code in (1, 3)}
    for code, launcher in codes.items():
        process = subprocess.Popen(
            [sys.executable, "-c", f"raise SystemExit({code})"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        process.wait()
        life = LifeReader(process.stdout, launcher.now)  # type: ignore[arg-type]
        launcher.running["w0"] = module.PeerProcess("w0", 0, process, tmp_path / "w0.log", False, life)
        assert launcher.check() == [("w0", code)]
    assert {code: len(one.policy.deaths[0]) for code, one in codes.items()} == {1: 0, 3: 1}
