"""Processes of peers: what they import, and where their output goes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from oddlot import JobError
from oddlot.engines.mesh import launcher as module
from oddlot.engines.mesh.launcher import Launcher

Start = Callable[[str], Launcher]


@pytest.fixture
def launcher_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Make a launcher of one peer that runs a script."""
    with ExitStack() as closing:

        def make(script: str) -> Launcher:
            (tmp_path / "for_peers").mkdir()
            (tmp_path / "for_peers" / "a_peer.py").write_text(script)
            monkeypatch.syspath_prepend(tmp_path / "for_peers")
            launcher = Launcher("a_peer", ["w0"], [0], tmp_path, True, module.clock())
            closing.callback(launcher.close)
            return launcher

        yield make


def exit_code(launcher: Launcher) -> int:
    """Run the peer until it ends."""
    peer = launcher._spawn(0)
    peer.process.wait()
    assert launcher.check() == [peer]
    return peer.process.returncode


DIES_FIRST = """
import sys
if "." not in sys.argv[2]:
    sys.exit(1)
print('{"address": "here"}', flush=True)
sys.stdin.readline()
"""


def test_a_peer_that_ends_while_it_starts_is_replaced(launcher_of: Start) -> None:
    launcher = launcher_of(DIES_FIRST)
    launcher.start_all()
    assert (launcher.begun, launcher.running["w0.2"].joins) == (["w0.2"], False)


def test_a_peer_that_ends_three_times_while_it_starts_ends_the_run(launcher_of: Start) -> None:
    with pytest.raises(JobError) as raised:
        launcher_of("raise SystemExit('because')").start_all()
    assert "because" in str(raised.value)
    assert (raised.value.code, raised.value.fields["node"]) == ("workers_keep_dying", "w0.3")


def test_a_peer_imports_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher_of: Start
) -> None:
    (tmp_path / "platform.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [place for place in sys.path if place])
    assert exit_code(launcher_of("import platform")) == 0


def test_the_output_of_a_peer_is_not_written_through_a_link(tmp_path: Path, launcher_of: Start) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / "w0.log").symlink_to(target)
    (tmp_path / "w0-1.log").symlink_to(target)
    with pytest.raises(JobError) as raised:
        exit_code(launcher_of(""))
    assert (raised.value.code, target.read_text()) == ("unwritable_file", "kept")
