"""Starts the processes of peers, tells them each other's addresses, and replaces those that are killed or hung.

Once the peers have started, they need the launcher no more.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from oddlot.checkpoint.atomic_files import told_where
from oddlot.checkpoint.disk import open_to_append, read_file, replace_file
from oddlot.core.errors import JobError
from oddlot.core.events import Arrived, Evaluated
from oddlot.core.records import Record
from oddlot.core.task_timeouts import hung_after
from oddlot.core.tasks import NodeId
from oddlot.core.user_warnings import warn
from oddlot.core.worker_stats import TIMEOUT_FACTOR
from oddlot.engines.local.orphans import kill_group
from oddlot.engines.local.processes import START_SECONDS
from oddlot.engines.mesh.peer_work import PeerWork
from oddlot.engines.mesh.signs_of_life import LifeReader
from oddlot.engines.node_ids import NodeIds
from oddlot.engines.respawn import EVALUATOR_INDEX, Death, RespawnPolicy

LOOK_SECONDS = 0.1
"""Time between two looks at the processes and logs of peers."""
MAX_OUTPUT = 4_000
"""Characters of a peer's output that an error has."""
STOP = "stop.json"
"""File with the reason for which peers are asked to finish."""
FAILED_CODE = 1
"""Exit code of a peer whose error ends the run. Code of the job may exit with it too."""


def replaced_file(folder: Path, node: NodeId) -> Path:
    """Return the file that exists once a peer is replaced. The other peers then drop models of it."""
    return folder / f"{node}.replaced.json"


@dataclass
class PeerProcess:
    """A peer's process, as the launcher sees it."""

    node: NodeId
    index: int
    process: "subprocess.Popen[bytes]"
    output: Path
    """File with what it writes to stdout and stderr."""
    joins: bool
    """Whether it takes over the state of another peer."""
    life: LifeReader
    is_begun: bool = False
    """Whether it knows the addresses of the others."""
    is_killed: bool = False
    """Whether it was killed because it has not responded."""

    @property
    def address(self) -> str:
        """Return the address at which it listens; empty if that is not known yet."""
        return self.life.address

    def silence(self, now: float) -> float:
        """Read its signs of life. Return the seconds without one if that is too long, else 0.

        Until it has finished a step, it may take as long as a worker of a hub to start.
        """
        self.life.read(now)
        step, silent = self.life.step_seconds, now - self.life.heard_at
        return silent if silent > (hung_after(TIMEOUT_FACTOR * step) if step else START_SECONDS) else 0.0

    def kill(self) -> None:
        """Kill its process, and those that it has started."""
        kill_group(self.process.pid)

    def close(self) -> None:
        """Close its pipes, and kill the processes that it has left behind."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def begin(self, peers: Mapping[NodeId, str], strikes: Mapping[str, int]) -> None:
        """Tell it the addresses of the others, and which samples ended the computation of earlier peers."""
        assert self.process.stdin is not None
        self.is_begun = True
        with suppress(BrokenPipeError):
            told = {"peers": dict(peers), "join": self.joins, "strikes": dict(strikes)}
            self.process.stdin.write(json.dumps(told).encode() + b"\n")
            self.process.stdin.close()


def clock() -> float:
    """Return the time of this machine's monotonic clock, which all its processes share, in seconds."""
    return time.monotonic()


class Launcher:
    """The processes of the peers of one run.

    `program` is the module that a peer runs. `inherited` are descriptors that every peer inherits; the first is that of
    the parcel with its setup. `began` is the time of the start, on the clock of `clock`. Names that are `taken` are not
    used again.
    """

    def __init__(
        self,
        program: str,
        names: Sequence[str],
        inherited: Sequence[int],
        outputs: Path,
        respawn: bool,
        began: float,
        taken: Collection[NodeId] = (),
        skip_bad: bool = False,
    ) -> None:
        self.program, self.ids = program, NodeIds(names, taken)
        self.inherited, self.outputs = list(inherited), outputs
        self.began = began
        self.policy = RespawnPolicy(len(names), respawn)
        self.running: dict[NodeId, PeerProcess] = {}
        self.files: list[Path] = []
        """Files with the output of all peers, those that have ended included."""
        self.work = PeerWork(skip_bad)

    def start_all(self) -> None:
        """Start every peer, and let them begin together. Raise JobError if one cannot start."""
        count = len(self.ids.names)
        peers = [self._spawn(index) for index in range(count)]
        while len(peers) < count or not all(peer.address for peer in peers):
            time.sleep(LOOK_SECONDS / 5)
            for peer in self.check():
                if peer.life.has_failed or not self.policy.replaces:
                    raise self._failed_start(peer)
                self._died(peer)
            for index in self.policy.due(self.now):
                self._spawn(index)
            peers = list(self.running.values())
        addresses = {peer.node: peer.address for peer in peers}
        for peer in peers:
            peer.begin({node: one for node, one in addresses.items() if node != peer.node}, {})

    @property
    def processes(self) -> list[int]:
        """Return the ids of the peers' processes."""
        return [peer.process.pid for peer in self.running.values()]

    @property
    def begun(self) -> list[NodeId]:
        """Return the running peers that know the addresses of the others."""
        return [node for node, peer in self.running.items() if peer.is_begun]

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
            self.check()
            time.sleep(LOOK_SECONDS / 5)
        self.close()

    def check(self) -> list[PeerProcess]:
        """Return the peers that have ended since the last call. Kill hung ones, and what the ended ones have left."""
        found = list[PeerProcess]()
        self._kill_hung()
        for node, peer in list(self.running.items()):
            if peer.process.poll() is not None:
                peer.life.read(self.now)
                del self.running[node]
                peer.close()
                found.append(peer)
        return found

    def heard(self, record: Record) -> None:
        """Note a record of a peer's log."""
        self.work(record)
        match record.event:
            case Arrived():
                self.policy.update_came()
            case Evaluated():
                self.policy.metrics_came()

    def replace(self, ended: Iterable[PeerProcess]) -> None:
        """Replace peers as workers of a hub, and start those that are due. The logs of the `ended` ones were read.

        Raise JobError if peers keep dying, and BadSamples if the same samples have ended three.
        """
        for peer in ended:
            self._died(peer)
        self._start_due()

    def ask_to_finish(self, reason: str) -> None:
        """Let all peers finish and save the model. Each gets SIGINT, and finds the reason in a file.

        An empty reason is Ctrl-C, and has no file.
        """
        if reason:
            with told_where(self.outputs / STOP):
                replace_file(self.outputs / STOP, json.dumps(reason).encode())
        for node in self.begun:  # others may have no handler yet
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
        """Kill the peers that still run, and all that they have started."""
        for peer in self.running.values():
            peer.kill()
        for peer in self.running.values():
            peer.process.wait()
            peer.close()
        self.running.clear()

    def _kill_hung(self) -> None:
        """Kill peers without signs of life."""
        for node, peer in self.running.items():
            if (seconds := peer.silence(self.now)) and not peer.is_killed:
                told = f"peer {node} was killed because it does not respond: its process is stopped, or hangs"
                warn(told, "peer_hung", node=node, seconds=seconds)
                peer.is_killed = True
                peer.kill()

    def _died(self, peer: PeerProcess) -> None:
        """Count the end of a peer, and which samples may be the reason."""
        node, code, now = peer.node, peer.process.returncode, self.now
        if peer.life.hung:
            told = f"peer {node} was killed because its {peer.life.hung} does not end"
            warn(told, "peer_work_hung", node=node, work=peer.life.hung)
        if peer.life.is_evaluating:
            self.policy.died(Death(node, EVALUATOR_INDEX, code), now)
        has_task = node in self.work.tasks and not peer.life.is_evaluating
        is_hung = has_task and (peer.is_killed or peer.life.hung == "task")
        death = Death(
            node,
            peer.index,
            code,
            had_tasks=has_task,
            idle=self.work.is_idle(node),
            expected=code == 0 or is_hung or peer.life.is_evaluating or node in self.work.evicted,
            productive=node in self.work.productive,
            output=self.output_of(node),
        )
        if is_hung or death.cause:
            self.work.strike(node, "hung" if is_hung else f"ended by {death.cause}")
        self.policy.died(death, now)

    def _start_due(self) -> None:
        """Start the peers that are due. Those that are ready join through the others."""
        others = {node: self.running[node].address for node in self.begun}
        for index in self.policy.due(self.now) if self.running else ():
            replaced = replaced_file(self.outputs, self.ids.current(index))
            with told_where(replaced):  # before the replacement reads the logs
                replace_file(replaced, b"{}")
            self._spawn(index, joins=True)
        for peer in self.running.values():
            if peer.address and not peer.is_begun:
                peer.begin(others, self.work.strikes)

    def _spawn(self, index: int, *, joins: bool = False) -> PeerProcess:
        node = self.ids.next(index)
        output = self.outputs / f"{node}.log"
        places = [place or str(Path.cwd()) for place in sys.path]  # as multiprocessing does
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
        with told_where(output), ExitStack() as closing:
            log = closing.enter_context(open_to_append(output))
            log.truncate(0)
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", self.program, str(self.inherited[0]), node, str(index)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=self.inherited,
                env=environment,
                start_new_session=True,
            )
        assert process.stdout is not None
        self.files.append(output)
        life = LifeReader(process.stdout, self.now)
        peer = self.running[node] = PeerProcess(node, index, process, output, joins, life)
        return peer

    def _failed_start(self, peer: PeerProcess) -> JobError:
        told = f"peer {peer.node} ended while it started:\n{self.output_of(peer.node)}"
        return JobError(told, "peer_not_started", node=peer.node)
