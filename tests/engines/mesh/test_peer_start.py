"""Starts of peer processes: failures, and the output file."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from oddlot import JobError, Local
from oddlot.core.tasks import NodeId
from oddlot.engines.mesh.launcher import Launcher
from oddlot.engines.mesh.launcher_link import LauncherLink
from tests.engines.mesh.stand_in import Program, setup

pytestmark = pytest.mark.usefixtures("warm_start", "fork_server")
Start = Callable[..., Launcher]


@pytest.fixture
def launcher_of(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that returns the launcher of a single peer with a given program."""
    with ExitStack() as closing:

        def make(program: Program, *, respawn: bool = True) -> Launcher:
            fork_server = Local(1).mesh.begin(closing)
            launcher = Launcher(setup(tmp_path, program), fork_server, ["w0"], respawn=respawn)
            closing.callback(launcher.close)
            return launcher

        yield make


def dies_first(node: NodeId, life: LauncherLink) -> None:
    """Fail at the first start, and succeed at the second."""
    if "." not in node:
        os._exit(1)
    life.begin("here", lambda: 0.0)
    life.wait_for_begin(lambda: False)


def test_peer_that_dies_at_start_is_replaced(launcher_of: Start) -> None:
    launcher = launcher_of(dies_first)
    launcher.start_all()
    assert (launcher.begun, launcher.running["w0.2"].joins) == (["w0.2"], False)


def dies(node: NodeId, life: LauncherLink) -> None:
    """Print a reason, and exit with an error code."""
    os.write(1, b"because")
    os._exit(3)


def test_three_deaths_at_start_end_the_run(launcher_of: Start) -> None:
    with pytest.raises(JobError) as raised:
        launcher_of(dies).start_all()
    assert "because" in str(raised.value)
    assert (raised.value.code, raised.value.fields["node"]) == ("workers_keep_dying", "w0.3")


def fails(node: NodeId, life: LauncherLink) -> None:
    """Raise an error."""
    raise JobError("of no use", "no_use")


@pytest.mark.parametrize("respawn", [True, False])
def test_peer_error_ends_the_run(launcher_of: Start, respawn: bool) -> None:
    with pytest.raises(JobError) as raised:
        launcher_of(fails, respawn=respawn).start_all()
    assert raised.value.code == "no_use"


def test_symlinked_peer_output_is_rejected(tmp_path: Path, launcher_of: Start) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / "w0.log").symlink_to(target)
    with pytest.raises(JobError) as raised:
        launcher_of(fails).spawn(0)
    assert (raised.value.code, target.read_text()) == ("unwritable_file", "kept")
