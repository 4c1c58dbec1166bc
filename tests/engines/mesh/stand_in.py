"""A stand-in for a peer's program. It reports an address and signs of life. The second start on a machine hangs.

Peers import this module, so it must not import test modules.
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oddlot.core.tasks import NodeId
from oddlot.engines.mesh.launcher_link import LauncherLink
from oddlot.engines.mesh.process import PeerSetup
from oddlot.engines.processes.process_setup import ProcessSetup
from tests.fits import a_job
from tests.processes import HANG_SECONDS

Program = Callable[[NodeId, LauncherLink], None]


@dataclass(frozen=True, kw_only=True)
class StandIn(PeerSetup):
    """The setup of peers that run another program."""

    program: Program

    def main(self, node: NodeId, index: int, life: LauncherLink) -> None:
        """Run the program."""
        self.program(node, life)


def setup(folder: Path, program: Program) -> StandIn:
    """Return the setup of peers that run a program."""
    return StandIn(program=program, job=a_job(), process=ProcessSetup.of_hub(1), folder=folder)


def stand_in(node: NodeId, life: LauncherLink) -> None:
    """Print the launcher's first message, then run until the launcher closes the socket."""
    if node.endswith(".2"):
        signal.alarm(HANG_SECONDS)
        signal.pause()
    life.begin("127.0.0.1:1", lambda: 0.001)
    print(life.wait_for_begin(lambda: False), flush=True)  # noqa: T201
    while life.launcher.recv(1):
        pass
