"""Starts the processes of peers, tells them each other's addresses, and replaces those that are killed.

Once the peers have started, they need the launcher no more.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from oddlot.checkpoint.atomic_files import told_where
from oddlot.checkpoint.disk import open_to_append, read_file
from oddlot.core.errors import JobError
from oddlot.core.tasks import NodeId
from oddlot.engines.node_ids import NodeIds
from oddlot.engines.respawn import Death, RespawnPolicy

LOOK_SECONDS = 0.1
"""Time between two looks at the processes and logs of peers."""
MAX_OUTPUT = 4_000
"""Characters of a peer's output that an error has."""
MODULE = "oddlot.run.peer_process"
FAILED_CODE = 1
"""Exit code of a peer whose error ends the run."""


@dataclass
class PeerProcess:
    """A peer's process, as the launcher sees it."""

    node: NodeId
    index: int
    process: "subprocess.Popen[bytes]"
    output: Path
    """File with what it writes to stdout and stderr."""
    address: str = ""
    joins: bool = False
    """Whether it takes over the state of another peer."""

    def read_address(self) -> str:
        """Wait for the address at which it listens; empty if it ends before it says one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.process.stdout.close()
        self.address = str(json.loads(line)["address"]) if line.endswith(b"\n") else ""
        return self.address

    def begin(self, peers: Mapping[NodeId, str], join: bool) -> None:
        """Tell it the addresses of the others. With `join`, it takes over the state of one of them."""
        assert self.process.stdin is not None
        self.joins = join
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"peers": dict(peers), "join": join}).encode() + b"\n")
            self.process.stdin.close()


def clock() -> float:
    """Return the time of this machine's monotonic clock, which all its processes share, in seconds."""
    return time.monotonic()


class Launcher:
    """The processes of the peers of one run.

    `inherited` are descriptors that every peer inherits; the first is that of the parcel with its setup. `began` is the
    time of the start, on the clock of `clock`. Names that are `taken` are not used again.
    """

    def __init__(
        self,
        names: Sequence[str],
        inherited: Sequence[int],
        outputs: Path,
        respawn: bool,
        began: float,
        taken: Collection[NodeId] = (),
    ) -> None:
        self.ids = NodeIds(names, taken)
        self.inherited, self.outputs = list(inherited), outputs
        self.began = began
        self.policy = RespawnPolicy(len(names), respawn)
        self.running: dict[NodeId, PeerProcess] = {}

    def start_all(self) -> None:
        """Start every peer, and let them begin together. Raise JobError if one cannot start."""
        peers = [self._spawn(index) for index in range(len(self.ids.names))]
        for peer in peers:
            if not peer.read_address():
                self.close()
                raise self._failed_start(peer)
        addresses = {peer.node: peer.address for peer in peers}
        for peer in peers:
            peer.begin({node: one for node, one in addresses.items() if node != peer.node}, join=False)

    @property
    def processes(self) -> list[int]:
        """Return the ids of the peers' processes."""
        return [peer.process.pid for peer in self.running.values()]

    @property
    def now(self) -> float:
        """Seconds since the run began, on the clock of the peers."""
        return clock() - self.began

    def pause(self) -> None:
        """Wait until the next look at the peers."""
        time.sleep(LOOK_SECONDS)

    def wait_for_end(self, seconds: float) -> None:
        """Wait for the end of all peers, and kill those that still run after these seconds."""
        until = self.now + seconds
        while self.running and self.now < until:
            self.check(replace=False)
            time.sleep(LOOK_SECONDS / 5)
        self.close()

    def check(self, *, replace: bool = True) -> list[tuple[NodeId, int]]:
        """Return the peers that have ended since the last call, with their exit codes.

        `replace` those that were killed, or that code of the job ended with an exit code of its own.
        """
        found, now = list[tuple[NodeId, int]](), self.now
        for node, peer in list(self.running.items()):
            code = peer.process.poll()
            if code is None:
                continue
            del self.running[node]
            found.append((node, code))
            if code != FAILED_CODE and replace:
                self.policy.died(Death(node, peer.index, code, idle=True, expected=code == 0), now)
        for index in self.policy.due(now) if replace else ():
            self._replace(index)
        return found

    def ask_to_finish(self) -> None:
        """Let all peers finish and save the model. One tells the others, and each gets the signal."""
        for node in self.running:
            self.signal(node, signal.SIGINT)

    def output_of(self, node: NodeId) -> str:
        """Return the end of what a peer wrote to stdout and stderr."""
        try:
            return read_file(self.outputs / f"{node}.log").decode("utf-8", "replace")[-MAX_OUTPUT:]
        except OSError as error:
            return f"its output cannot be read ({error})"

    def signal(self, node: NodeId, number: signal.Signals) -> None:
        """Send a signal to a peer's process."""
        if peer := self.running.get(node):
            with suppress(ProcessLookupError):
                peer.process.send_signal(number)

    def close(self) -> None:
        """Kill the peers that still run."""
        for peer in self.running.values():
            with suppress(ProcessLookupError):
                peer.process.kill()
        for peer in self.running.values():
            peer.process.wait()
        self.running.clear()

    def _replace(self, index: int) -> None:
        """Start another peer on a machine, which joins through those that live."""
        living = {node: one.address for node, one in self.running.items()}
        if not living:
            return
        peer = self._spawn(index)
        if peer.read_address():
            peer.begin(living, join=True)

    def _spawn(self, index: int) -> PeerProcess:
        node = self.ids.next(index)
        output = self.outputs / f"{node}.log"
        places = [place or str(Path.cwd()) for place in sys.path]  # as multiprocessing does
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
        with told_where(output), ExitStack() as closing:
            log = closing.enter_context(open_to_append(output))
            log.truncate(0)
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(self.inherited[0]), node, str(index)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=self.inherited,
                env=environment,
                start_new_session=True,
            )
        peer = self.running[node] = PeerProcess(node, index, process, output)
        return peer

    def _failed_start(self, peer: PeerProcess) -> JobError:
        told = f"peer {peer.node} ended while it started:\n{self.output_of(peer.node)}"
        return JobError(told, "peer_not_started", node=peer.node)
