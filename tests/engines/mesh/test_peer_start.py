"""Processes of peers: what they import, and where their output goes."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oddlot import JobError
from oddlot.engines.mesh import launcher as module
from oddlot.engines.mesh.launcher import Launcher


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[int]]:
    """Run a script in place of a peer until it ends, and return the exit codes that the launcher saw."""

    def begin(script: str) -> list[int]:
        (tmp_path / "for_peers").mkdir()
        (tmp_path / "for_peers" / "a_peer.py").write_text(script)
        monkeypatch.syspath_prepend(tmp_path / "for_peers")
        monkeypatch.setattr(module, "MODULE", "a_peer")
        launcher = Launcher(["w0"], [0], tmp_path, True, module.clock())
        peer = launcher._spawn(0)
        peer.process.wait()
        ended = launcher.check()
        launcher.close()
        return [peer.process.returncode for peer in ended]

    return begin


def test_a_peer_imports_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[str], list[int]]
) -> None:
    (tmp_path / "platform.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [place for place in sys.path if place])
    assert start("import platform") == [0]


def test_the_output_of_a_peer_is_not_written_through_a_link(
    tmp_path: Path, start: Callable[[str], list[int]]
) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / "w0.log").symlink_to(target)
    (tmp_path / "w0-1.log").symlink_to(target)
    with pytest.raises(JobError) as raised:
        start("")
    assert (raised.value.code, target.read_text()) == ("unwritable_file", "kept")
