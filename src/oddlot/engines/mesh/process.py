"""The process of a peer: its setup from the launcher, its mailbox and main loop, and its program."""

import logging
import os
import queue
import secrets
import signal
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NoReturn, Protocol

from torch import Tensor

from oddlot.core.events import FaultInjected, Joined, ModelRejected
from oddlot.core.peers import IncludedModel
from oddlot.core.support.errors import JobError, OddlotError
from oddlot.core.support.serialization import from_plain
from oddlot.core.support.user_warnings import warn
from oddlot.core.tasks import NodeId
from oddlot.engines.base import RunData
from oddlot.engines.host import ReceivedUpdate
from oddlot.engines.local.messages import Say
from oddlot.engines.local.orphans import adopt, kill_children, lead_group
from oddlot.engines.local.shared_memory import open_parcel
from oddlot.engines.loop import drive
from oddlot.engines.mesh.compute import ProcessPort, Ready
from oddlot.engines.mesh.launcher_link import LauncherLink, end_process
from oddlot.engines.mesh.messages import FromPeer, Tensors
from oddlot.engines.mesh.network_faults import Inject
from oddlot.engines.mesh.newcomer import Newcomer
from oddlot.engines.mesh.peer import Peer
from oddlot.engines.mesh.transport import Rejected, StrangerRejected, Transport, Unreachable
from oddlot.engines.processes.memory_allocator import keep_memory
from oddlot.engines.processes.pace import Pace
from oddlot.engines.processes.process_setup import ProcessSetup, loading_learner_of
from oddlot.machines.machine import Machine
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.train.devices import choose_device
from oddlot.train.job import Job

LONGEST_WAIT_SECONDS = 0.2
"""Longest wait of a mailbox, in seconds, so that signals and alarms are handled soon."""
logger = logging.getLogger(__name__)


def replaced_file(folder: Path, node: NodeId) -> Path:
    """Return the path of the file that exists once a peer is replaced. The other peers then drop its models."""
    return folder / f"{node}.replaced.json"


@dataclass(frozen=True, kw_only=True)
class PeerSetup(ABC):
    """The inputs of the launcher and of every peer of a run."""

    job: Job
    process: ProcessSetup
    folder: Path
    """Folder of the peers' files."""
    elapsed: float = 0.0
    """Seconds of the run before this start."""
    dollars_per_hour: float = 0.0
    as_if: tuple[Machine, ...] | None = None
    """A machine for each peer. The peer imitates the machine's speed. If None, peers run at full speed."""
    secret: bytes = field(default_factory=partial(secrets.token_bytes, 32))
    started: float = field(default_factory=time.monotonic)
    """Start time, on the monotonic clock that all processes of this machine share."""

    @property
    def now(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self.started + self.elapsed

    @abstractmethod
    def main(self, node: NodeId, index: int, life: LauncherLink) -> None:
        """Run a peer in this process, with a subclass of `MeshProcess`."""


class PeerOfRun(Protocol):
    """A peer with its part of the run."""

    peer: Peer

    def due(self) -> float:
        """Return the due time of `MeshProcess.follow` if no message arrives."""

    def flush_log(self) -> None:
        """Write the log into its file."""

    def close_log(self, now: float) -> None:
        """Log the end of the peer."""


class MeshProcess(ABC):
    """The process of a peer, from its start to the end of the run. It is the host and the mailbox of `loop.drive`.

    The mailbox has messages of other peers and of this peer's computation. A subclass makes the model and the data,
    calls `open` and `drive`, and implements the abstract methods.
    """

    transport: Transport
    port: ProcessPort
    run: PeerOfRun | None = None

    def __init__(self, setup: PeerSetup, node: NodeId, index: int, life: LauncherLink) -> None:
        self.setup, self.node, self.index, self.life = setup, node, index, life
        self.newcomer: Newcomer | None = None
        self.strikes: Mapping[str, int] = {}
        """Samples that have ended or hung earlier peers, with their counts."""
        self.is_ready = False
        self.ended = ""
        self.signal = 0
        """Number of the last unhandled signal. 0: none."""
        self.stop_reason = ""
        """Reason of the launcher's request to finish. Empty: Ctrl-C."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note_signal)

    def open(self, data: RunData) -> None:
        """Listen for other peers, and prepare the computation."""
        setup, job = self.setup, data.job
        self.transport = Transport(self.node, setup.secret, data.layout, data.codec)
        pace = Pace(setup.as_if[self.index] if setup.as_if else None, data.seed, job.batch_size)
        device = choose_device(job.device, self.index)
        self.port = ProcessPort(
            self.transport, lambda: loading_learner_of(data, device), pace, self.life.report
        )
        self.life.begin(self.transport.address, self.step_seconds)

    def drive(self) -> None:
        """Wait until all peers are ready, then train until the run ends."""
        message = self.life.wait_for_begin(lambda: bool(self.signal))
        if message is not None:
            self._begin(**message)
            drive(self, self, lambda: self.ended, lambda: self.run.due() if self.run else inf)
            self._flush()
        self.transport.close()
        if (count := self.transport.strangers) > 1:
            text = (
                f"peer {self.node} rejected {count:,} connections of processes that are not peers of the run"
            )
            warn(text, "connections_rejected", node=self.node, connections=count)

    # --- implemented by the run --------------------------------------------------------------------

    @abstractmethod
    def begin(self) -> PeerOfRun:
        """Return a peer that starts with the run."""

    @abstractmethod
    def join(
        self, source: IncludedModel, weights: FlatBuffer, optimizer: Mapping[str, Tensor] | None
    ) -> PeerOfRun:
        """Return a peer that starts with the state of another peer, and knows the peers of `port.addresses`."""

    @abstractmethod
    def follow(self, now: float) -> str:
        """Act on the last message. Return why the process ends; empty if it continues."""

    @abstractmethod
    def stop(self, reason: str, now: float) -> None:
        """Finish, and ask all peers to finish. The reason is empty for Ctrl-C."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether the run has ended, so that no peer can join it."""

    # --- the host and the mailbox of `loop.drive` ------------------------------------------------

    @property
    def peer(self) -> Peer | None:
        """Return the peer, or None until it has a model."""
        return self.run.peer if self.run is not None else None

    @property
    def now(self) -> float:
        """Seconds since the start of the run, on the clock that all peers of a run share."""
        return self.setup.now

    @property
    def is_spent(self) -> bool:
        """Return False: other peers may always send something."""
        return False

    def next(self, until: float) -> Any:
        """Return the next message, or None if no message arrives for a short time. Raise an error of the job's code."""
        wait = min(max(until - self.now, 0.0), LONGEST_WAIT_SECONDS)
        try:
            item = self.transport.incoming.get(timeout=wait) if wait else self.transport.incoming.get_nowait()
        except queue.Empty:
            return None
        if callable(item):
            item()
            return None
        if isinstance(item, OddlotError):
            raise item
        return item

    @property
    def alarm(self) -> float:
        """Return the due time of `ring`; infinity for never."""
        waiting = self.peer or self.newcomer
        return waiting.alarm if waiting is not None else inf

    def ring(self, now: float) -> None:
        """Handle due alarms."""
        if waiting := self.peer or self.newcomer:
            waiting.ring(now)
        self._follow(now)

    def receive(self, item: Any, now: float) -> None:
        """Handle a message of another peer, of the computation of this peer, or of the transport."""
        match item:
            case Ready():
                self.is_ready = True
                self._announce(now)
            case StrangerRejected(reason):
                message = f"peer {self.node} rejected a connection: {reason}. Later ones are only counted"
                warn(message, "connection_rejected", node=self.node, reason=reason)
            case Unreachable() | Rejected():
                self._broken(item, now)
            case FromPeer() if self.port.disturbance.is_cut(item.sender):
                item.release()
            case FromPeer(tensors=Tensors()) if self._is_replaced(item.sender):
                item.release()
            case _ if self.peer is not None:
                if isinstance(item, ReceivedUpdate):
                    self.peer.lose_replaced(self._is_replaced, now)
                self.peer.receive(item, now)
            case _ if self.newcomer is not None:
                self.newcomer.receive(item, now)
        self._follow(now)

    def step_seconds(self) -> float:
        """Return the peer's longest recent step, in seconds; 0 if it has finished none."""
        return self.peer.membership.step_seconds if self.peer is not None else 0.0

    def _note_signal(self, number: int, _: object) -> None:
        self.signal = number

    def _is_replaced(self, peer: NodeId) -> bool:
        return replaced_file(self.setup.folder, peer).exists()

    def _broken(self, item: Unreachable | Rejected, now: float) -> None:
        """Handle a broken or rejected connection."""
        peer = self.peer
        match item:
            case Rejected(reason, by) if by:
                raise JobError(f"{by} does not accept this peer: {reason}", "peer_rejected", by=by)
            case Rejected(reason, sender=sender):
                logger.warning("%s", reason)
                if peer is not None and sender:
                    peer.host.handle(ModelRejected(sender, None, reason), now)
            case Unreachable(other, True) if self.newcomer is not None and peer is None:
                self.newcomer.gone(other, now)
            case Unreachable(other, is_gone) if peer is not None:
                if is_gone:
                    peer.gone(other, now)
                else:
                    peer.membership.unreachable(other, now)
                    peer.membership.greet(other)
                    peer.flush()

    def _inject(self, what: Inject, now: float) -> None:
        """Inject a fault, or log one."""
        faults = self.port.disturbance
        if what.is_logged:
            if self.peer is not None:
                self.peer.host.handle(FaultInjected(what.fault, what.kind, what.node), now)
        elif what.kind == "partition":
            others = self.peer.membership.members if self.peer is not None else ()
            faults.partition(self.node, what.side, list(others))
        elif what.node == self.node and what.kind == "slow":
            self.port.control.pace.slowness = what.factor
        elif what.node == self.node:
            faults.next.append((what.kind, what.seconds))

    # --- joining -------------------------------------------------------------------------------

    def _begin(self, peers: Mapping[NodeId, str], join: bool, strikes: Mapping[str, int]) -> None:
        self.strikes, now = strikes, self.now
        if join:
            self.port.addresses = dict(peers)
            self.newcomer = Newcomer(self.port, list(peers), self._join, now, self.transport.address)
        else:
            self._add(self.begin()).meet(peers, now)

    def _join(self, source: IncludedModel, given: FlatBuffer, optimizer: Mapping[str, Tensor] | None) -> None:
        """Start with the state of another peer."""
        weights = FlatBuffer.empty(given.layout)
        weights.copy_(given)
        peer = self._add(self.join(source, weights, optimizer))
        peer.join(self.port.addresses, self.now)

    def _add(self, run: PeerOfRun) -> Peer:
        self.run, peer = run, run.peer
        self.port.membership = peer.membership
        peer.membership.begin(self.now)
        self._announce(self.now)
        return peer

    def _announce(self, now: float) -> None:
        """Let this peer's worker join, if it is ready and the peer has a model."""
        if self.is_ready and self.peer is not None and not self.peer.host.conductor.busy:
            self.peer.receive(Joined(self.node, self.setup.dollars_per_hour), now)

    # --- signals and requests of the launcher --------------------------------------------------

    def _follow(self, now: float) -> None:
        """Handle signals and messages of the launcher, then let the run act on the last message."""
        self._end_if_hung()
        for kind, body in self.life.hear():
            if kind is Say.STOP:
                self.signal, self.stop_reason = signal.SIGINT, body["reason"]
            else:
                self._inject(from_plain(Inject, body["what"]), now)
        if self.run is None:
            is_alone = self.newcomer is not None and self.newcomer.is_alone
            self.ended = "done" if self.signal or self.is_over or is_alone else ""
            return
        received, self.signal = self.signal, 0
        if received == signal.SIGINT:
            self.stop(self.stop_reason, now)
        elif received == signal.SIGTERM:
            self.run.peer.membership.leave()
            self.run.peer.flush()
            self.run.close_log(now)
            self.ended = "left"
            return
        self.ended = self.follow(now)

    def _flush(self) -> None:
        if self.run is not None:
            self.run.flush_log()

    def _end_if_hung(self) -> None:
        """End the process if its work hangs, because a thread cannot be killed. The launcher replaces it."""
        members = self.peer.membership.members.values() if self.peer is not None else ()
        hung = self.port.hung(one.step_seconds for one in members)
        if hung or self.port.is_evicted:
            self._flush()
            self.life.report(hung=hung)
            end_process()


def main(fds: list[int], body: dict[str, Any], _: int) -> NoReturn:
    """Run a forked peer until it ends. Its output is written to a file."""
    lead_group(os.getpid())
    keep_memory()
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    adopt()
    life, code = LauncherLink(socket.socket(fileno=fds[0])), 0
    for stream in (1, 2):
        os.dup2(fds[1], stream)
    logging.basicConfig(format="%(levelname)s: %(message)s")
    try:
        setup: PeerSetup = open_parcel(fds[2])
        setup.process.apply(setup.job)
        setup.main(body["node"], body["index"], life)
    except BaseException as error:  # noqa: BLE001 - any error ends the run
        life.fail(error)
        if not life.is_heard:
            print(error, file=sys.stderr)  # noqa: T201 - into the peer's file
        code = 1
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    kill_children()
    os._exit(code)
