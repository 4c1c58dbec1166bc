"""The launcher of a mesh: it starts peer processes, sends them their addresses, and replaces lost or hung peers.

Also the output of peers, and the injection of faults into them. Peers that have started do not need the launcher.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oddlot.checkpoint.local_storage import naming_path, open_to_append, open_to_read, read_file, replace_file
from oddlot.core.events import Arrived, Evaluated, FaultInjected
from oddlot.core.records import Record
from oddlot.core.support.errors import JobError
from oddlot.core.support.serialization import to_plain
from oddlot.core.support.user_warnings import warn
from oddlot.core.task_timeouts import hung_after
from oddlot.core.tasks import NodeId
from oddlot.core.worker_stats import TIMEOUT_FACTOR
from oddlot.engines.local.channels import Channels, ProcessHandle
from oddlot.engines.local.fork_client import ForkClient
from oddlot.engines.local.inject import SignalFaults
from oddlot.engines.local.messages import Say, encode
from oddlot.engines.local.orphans import kill_group, wait_until_gone
from oddlot.engines.local.processes import END_SECONDS, START_SECONDS, Processes
from oddlot.engines.local.shared_memory import pack_parcel
from oddlot.engines.mesh import process
from oddlot.engines.mesh.network_faults import Inject
from oddlot.engines.mesh.peer_work import PeerWork
from oddlot.engines.mesh.process import PeerSetup, replaced_file
from oddlot.engines.processes.node_ids import NodeIds
from oddlot.engines.processes.respawn import EVALUATOR_INDEX, Death, RespawnPolicy
from oddlot.engines.processes.user_code_error import failure_of

MAX_BYTES = 1 << 20
"""Maximum number of bytes that are read from a file at once."""
MAX_LINES = 10_000
"""Maximum number of distinct lines that are remembered."""


def to_stderr(line: str) -> None:
    """Write a line to stderr."""
    with suppress(OSError, ValueError):  # closed
        sys.stderr.write(f"{line}\n")


class PeerOutput:
    """A viewer for new lines of the peers' output files. A line that several peers write is shown once."""

    def __init__(self, show: Callable[[str], object] = to_stderr) -> None:
        self.show = show
        self.paths: list[Path] = []
        """Files of all peers, including ended peers."""
        self.read_bytes: dict[Path, int] = {}
        self.shown: set[str] = set()

    def read(self) -> None:
        """Show the complete lines that were written since the last call."""
        for path in self.paths:
            for line in self._lines(path):
                if line not in self.shown:
                    self.show(line)
                    self.shown.add(line)
            if len(self.shown) > MAX_LINES:
                self.shown.clear()

    def _lines(self, path: Path) -> list[str]:
        start = self.read_bytes.get(path, 0)
        try:
            with open_to_read(path) as file:
                file.seek(start)
                data = file.read(MAX_BYTES)
        except OSError:  # it was removed
            return []
        if len(data) < MAX_BYTES:
            data = data[: data.rfind(b"\n") + 1]
        self.read_bytes[path] = start + len(data)
        return data.decode("utf-8", "replace").splitlines()


LOOK_SECONDS = 0.1
"""Longest time between two checks of the processes and logs of peers, in seconds."""
MAX_OUTPUT = 4_000
"""Maximum number of characters of a peer's output in an error."""


@dataclass(slots=True, eq=False, kw_only=True)
class PeerHandle(ProcessHandle):
    """The handle of a peer process. The process is ready once its address is known."""

    joins: bool
    """Whether it starts with the state of another peer."""
    heard_at: float
    """Time of its last sign of life."""
    address: str = ""
    """Listening address. Empty: unknown."""
    is_begun: bool = False
    """Whether the addresses of the other peers were sent to it."""
    step_seconds: float = 0.0
    """Its longest recent step, in seconds. 0: it has finished none."""
    evaluating: bool = False
    hung: str = ""
    """Hung work of a process that has ended itself: "start", "task" or "evaluation". Empty: none."""
    failure: JobError | None = None
    """Error that ends the run."""

    def silence(self, now: float) -> float:
        """Return the seconds without a sign of life if that is too long, else 0.

        Before its first finished step, the limit is `START_SECONDS`.
        """
        if not self.ready:
            return 0.0
        step, silent = self.step_seconds, now - self.heard_at
        return silent if silent > (hung_after(TIMEOUT_FACTOR * step) if step else START_SECONDS) else 0.0


class Launcher(Processes[PeerHandle]):
    """The processes of the peers of one run.

    Peers inherit the descriptor `lock`. Names in `taken` are not used again.
    """

    title = "peer"

    def __init__(
        self,
        setup: PeerSetup,
        fork_server: ForkClient,
        names: list[str],
        *,
        respawn: bool = True,
        lock: int | None = None,
        taken: Collection[NodeId] = (),
        skip_bad: bool = False,
    ) -> None:
        self.setup, self.folder = setup, setup.folder
        policy = RespawnPolicy(len(names), respawn)
        super().__init__(fork_server, NodeIds(names, taken), Channels(0.0), policy, lambda: setup.now)
        needed = type(setup).__module__
        self.modules = [process.__name__, *([needed] if needed.startswith("oddlot.") else [])]
        self.readers = {Say.READY: self._ready, Say.ALIVE: self._alive, Say.FAILED: self._failed}
        self.inherited = [pack_parcel(setup)] + ([] if lock is None else [lock])
        self.closing = ExitStack()
        self.closing.callback(os.close, self.inherited[0])
        self.closing.callback(self.channels.close)
        self.gone: list[PeerHandle] = []
        """Peers that have ended since the last call of `newly_ended`."""
        self.output = PeerOutput()
        self.work = PeerWork(skip_bad)

    @property
    def now(self) -> float:
        """Seconds since the start of the run, on the clock of the peers."""
        return self.setup.now

    @property
    def pids(self) -> list[int]:
        """Return the ids of the peers' processes."""
        return [peer.pid for peer in self.running.values() if peer.pid]

    @property
    def begun(self) -> list[NodeId]:
        """Return the running peers that have got the addresses of the others."""
        return [node for node, peer in self.running.items() if peer.is_begun]

    def start_all(self) -> None:
        """Start all peers, and let them train once all are ready. Raise JobError if one cannot start."""
        count = len(self.ids.names)
        for index in range(count):
            self.spawn(index)
        while len(self.running) < count or not all(peer.ready for peer in self.running.values()):
            self.pause()
            for peer in self.newly_ended():
                if not self.policy.replaces and peer.failure is None:
                    message = f"peer {peer.node} ended while it started:\n{self.output_of(peer.node)}"
                    raise JobError(message, "peer_not_started", node=peer.node)
                self._died(peer)
            for index in self.policy.due(self.now):
                self.spawn(index)
        addresses = {peer.node: peer.address for peer in self.running.values()}
        for peer in self.running.values():
            self.begin(peer, {node: one for node, one in addresses.items() if node != peer.node})

    def spawn(self, index: int, *, joins: bool = False) -> PeerHandle:
        """Start a peer."""
        node = self.ids.next(index)
        path = self.folder / f"{node}.log"
        with naming_path(path), open_to_append(path) as log:
            log.truncate(0)
            fields = self._fork(node, index, [log.fileno(), *self.inherited])
        self.output.paths.append(path)
        return self._add(PeerHandle(**fields, joins=joins, heard_at=self.now))

    def begin(self, peer: PeerHandle, others: dict[NodeId, str]) -> None:
        """Send a peer the addresses of the others and the samples that have ended or hung earlier peers."""
        peer.is_begun = True
        message = pack_parcel({"peers": others, "join": peer.joins, "strikes": dict(self.work.strikes)})
        with suppress(OSError):  # it has ended; its end will be reported
            socket.send_fds(peer.socket, [encode(Say.BEGIN)], [message])
        os.close(message)

    def pause(self) -> None:
        """Handle messages of peers for a short time, and show their new output."""
        for hear in self.channels.wait(LOOK_SECONDS):
            hear()
        self.output.read()

    def wait_for_end(self, seconds: float) -> None:
        """Wait at most these seconds for the end of the peers that train, then kill all running peers."""
        until = self.now + seconds
        while (self.begun or self.ending) and self.now < until:
            self.pause()
        self.close()

    def newly_ended(self) -> list[PeerHandle]:
        """Return the peers that have ended since the last call. Kill hung peers."""
        self.check()
        for node, peer in self.running.items():
            if (seconds := peer.silence(self.now)) and peer.silent_seconds is None:
                message = (
                    f"peer {node} was killed because it does not respond: its process is stopped, or hangs"
                )
                warn(message, "peer_hung", node=node, seconds=seconds)
                peer.silent_seconds = seconds
                self.signal(node, signal.SIGKILL)
        ended, self.gone = self.gone, []
        return ended

    def heard(self, record: Record) -> None:
        """Process a record of a peer's log."""
        self.work(record)
        match record.event:
            case Arrived():
                self.policy.update_came()
                self.server_ends = 0
            case Evaluated():
                self.policy.metrics_came()

    def replace(self, ended: Iterable[PeerHandle]) -> None:
        """Replace ended peers, by the rules for workers of a hub. Read the logs of the `ended` peers before the call.

        Raise the error of a peer that failed, JobError if peers keep dying, and BadSamples if the same samples have
        ended three peers.
        """
        for peer in ended:
            self._died(peer)
        others = {node: self.running[node].address for node in self.begun}
        for index in self.policy.due(self.now) if self.running else ():
            replaced = replaced_file(self.folder, self.ids.current(index))
            with naming_path(replaced):  # before the replacement reads the logs
                replace_file(replaced, b"{}")
            self.spawn(index, joins=True)
        for peer in self.running.values():
            if peer.ready and not peer.is_begun:
                self.begin(peer, others)

    def lost_all(self) -> JobError:
        """Return the error of a run that has lost all peers: BadSamples if samples are suspected."""
        message = (
            'all peers were lost before the run was complete: resume="latest" (--resume latest) continues it'
        )
        return self.work.blame() or JobError(message, "no_workers_left")

    def ask_to_finish(self, reason: str) -> None:
        """Let all peers finish and save the model. The reason is empty for Ctrl-C."""
        for node in self.begun:
            self.tell(node, Say.STOP, reason=reason)

    def tell(self, node: NodeId, kind: Say, **body: Any) -> None:
        """Send a message to a peer, if it runs."""
        if peer := self.running.get(node):
            self.channels.send(peer, encode(kind, **body))

    def output_of(self, node: NodeId) -> str:
        """Return the end of a peer's output to stdout and stderr."""
        try:
            return read_file(self.folder / f"{node}.log").decode("utf-8", "replace")[-MAX_OUTPUT:]
        except OSError as error:
            return f"its output cannot be read ({error})"

    @property
    def faults(self) -> "LocalMeshFaults":
        """Return the fault injection into peers."""
        return LocalMeshFaults(self)

    def close(self) -> None:
        """Kill all running peers and the processes that they have started."""
        pids = [peer.pid for peer in (*self.running.values(), *self.ending) if peer.pid]
        for pid in pids:
            kill_group(pid)
        wait_until_gone(pids, END_SECONDS)
        for peer in list(self.running.values()):
            self._forget(peer)
        self.output.read()
        self.closing.close()

    # --- messages of peers ---------------------------------------------------------------------

    def _ready(self, peer: PeerHandle, body: dict[str, Any]) -> None:
        peer.address, peer.ready, peer.heard_at = str(body["address"]), True, self.now
        self.learn_pid(peer)

    def _alive(self, peer: PeerHandle, body: dict[str, Any]) -> None:
        peer.heard_at = self.now
        for name in ("step_seconds", "evaluating", "hung"):
            setattr(peer, name, body.get(name, getattr(peer, name)))

    def _failed(self, peer: PeerHandle, body: dict[str, Any]) -> None:
        peer.failure, peer.taken_away = failure_of(peer.node, body), True

    def _ended(self, peer: PeerHandle) -> None:
        self.gone.append(peer)

    def _died(self, peer: PeerHandle) -> None:
        """Count the end of a peer, also against its samples if they are suspected. Raise its error if it failed."""
        if peer.failure is not None:
            raise peer.failure
        node, code, now = peer.node, peer.exit_code, self.now
        if peer.hung:
            message = f"peer {node} was killed because its {peer.hung} does not end"
            warn(message, "peer_work_hung", node=node, work=peer.hung)
        if peer.evaluating:
            self.policy.died(Death(node, EVALUATOR_INDEX, code), now)
        has_task = node in self.work.tasks and not peer.evaluating
        is_hung = has_task and (peer.silent_seconds is not None or peer.hung == "task")
        death = Death(
            node,
            peer.index,
            code,
            had_tasks=has_task,
            idle=self.work.is_idle(node),
            expected=code == 0 or is_hung or peer.evaluating or node in self.work.evicted or peer.taken_away,
            productive=node in self.work.productive,
            killed=peer.killed,
            output=self.output_of(node),
        )
        if is_hung or death.cause:
            self.work.strike(node, "hung" if is_hung else f"ended by {death.cause}")
        self.policy.died(death, now)


class LocalMeshFaults(SignalFaults):
    """Fault injection into peers, by signals and by messages about network faults."""

    processes: Launcher

    def note(self, injected: FaultInjected) -> None:
        """Let a peer log a fault, if possible not the affected peer."""
        running = self.processes.begun
        others = [node for node in running if node != injected.node] or running
        for node in others[:1]:
            self._send(node, Inject(injected.fault, injected.kind, injected.node, is_logged=True))

    def slow(self, node: NodeId, factor: float) -> None:
        """Slow a peer down."""
        self._send(node, Inject("", "slow", node, factor=factor))

    def bar(self, machine: str, barred: bool) -> None:
        """Do nothing: a mesh has no injected capacity."""

    def disturb(self, node: NodeId, kind: str, seconds: float) -> None:
        """Delay, drop or corrupt the next model that a peer sends."""
        self._send(node, Inject("", kind, node, seconds=seconds))

    def partition(self, side: Collection[NodeId]) -> None:
        """Separate these peers from all others. An empty `side` ends the partition."""
        for node in self.processes.begun:
            self._send(node, Inject("", "partition", "", side=tuple(side)))

    def _send(self, node: NodeId, what: Inject) -> None:
        self.processes.tell(node, Say.INJECT, what=to_plain(what))
