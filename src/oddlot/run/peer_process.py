"""The program of one peer: `python -m oddlot.run.peer_process PARCEL NODE INDEX`, started by the launcher.

It prints its address, reads the addresses of the others from stdin, and from then on needs the launcher no more.
"""

import hashlib
import json
import logging
import os
import signal
import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from torch import Tensor

from oddlot.checkpoint.atomic_files import told_where
from oddlot.checkpoint.disk import read_file, replace_file
from oddlot.checkpoint.shared_writer import LAUNCH_DIGITS
from oddlot.core.conductor import Conductor
from oddlot.core.errors import JobError, UsageError
from oddlot.core.events import Joined, ModelRejected, Struck
from oddlot.core.peers import Source
from oddlot.core.records import Record
from oddlot.core.serialization import DAMAGED
from oddlot.core.tasks import NodeId
from oddlot.core.user_imports import enter_worker
from oddlot.core.user_warnings import warn
from oddlot.engines.failure import plain_failure
from oddlot.engines.host import Arrival
from oddlot.engines.local.orphans import adopt, kill_children
from oddlot.engines.local.shared_memory import open_parcel
from oddlot.engines.loop import drive
from oddlot.engines.mesh.compute import ComputeThread, Ready
from oddlot.engines.mesh.launcher import FAILED_CODE, STOP, replaced_file
from oddlot.engines.mesh.messages import FromPeer, Inject, State, Tensors
from oddlot.engines.mesh.newcomer import Newcomer
from oddlot.engines.mesh.process import ProcessMailbox, ProcessPort
from oddlot.engines.mesh.signs_of_life import SignsOfLife, end_process, read_line
from oddlot.engines.mesh.transport import Hello, Rejected, StrangerRejected, Transport, Unreachable
from oddlot.engines.pace import Pace
from oddlot.engines.process_setup import ProcessSetup, learner_of
from oddlot.faults.plan import ANSWERED
from oddlot.history.included_samples import IncludedSamples
from oddlot.history.lock import LOCK, hold
from oddlot.history.metrics import tally_of
from oddlot.history.outcome import FAILED, INTERRUPTED, in_short
from oddlot.history.peer_logs import one_history
from oddlot.history.run_folder import PEERS, SUMMARY, RunFolder
from oddlot.machines.machine import Machine
from oddlot.run.bad_rows import rows_named
from oddlot.run.divergence import check_learned
from oddlot.run.mesh_folder import mesh_summary, write_average
from oddlot.run.mesh_saving import MeshSaving
from oddlot.run.peer_run import PeerRun
from oddlot.run.peer_share import MeshStart, PeerShare
from oddlot.run.spec import Recipe
from oddlot.train.flat_buffer import FlatBuffer, Layout
from oddlot.train.job import choose_device, made
from oddlot.train.seeding import seed_all

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PeerSetup:
    """What every peer of a run gets."""

    recipe: Recipe
    start: MeshStart
    folder: str
    keeps_checkpoints: bool
    run_id: str
    secret: bytes
    began: float
    """Time of the start, on the machine's monotonic clock."""
    process: ProcessSetup
    as_if: tuple[Machine, ...] | None = None
    """A machine for each peer, whose speed it has. None: full speed."""


class PeerProgram:
    """One peer, from its start to the end of the run: what `drive` needs of a host."""

    def __init__(self, setup: PeerSetup, node: NodeId, index: int, life: SignsOfLife) -> None:
        self.setup, self.node, self.index, self.life = setup, node, index, life
        recipe = self.recipe = setup.recipe
        self.folder = RunFolder(setup.folder)
        setup.process.apply(recipe.job)
        seed_all(recipe.config.seed)
        self.model = made(recipe.job)
        self.layout = Layout.from_module(self.model, recipe.job.as_buffers)
        self.share = PeerShare(recipe, node, tuple(recipe.engine.names), setup.start.done)
        hello = Hello.here(node, setup.run_id, self.layout)
        self.transport = Transport(hello, setup.secret, self.layout, recipe.codec)
        self.mailbox = ProcessMailbox(self.transport.incoming, setup.began)
        pace = Pace(setup.as_if[index] if setup.as_if else None, recipe.config.seed)
        data = recipe.run_data(self.layout, self.model)
        device = choose_device(recipe.job.device, index)
        self.compute = ComputeThread(
            lambda: learner_of(data, device), pace, self.transport.incoming, life.report
        )
        self.port = ProcessPort(self.transport, self.compute)
        self.saving = self._saving() if setup.keeps_checkpoints else None
        self.run: PeerRun | None = None
        self.newcomer: Newcomer | None = None
        self.launcher = os.getppid()
        self.strikes: Mapping[str, int] = {}
        self.is_ready = False
        self.ended = ""
        self.signal = 0
        """Number of the last signal that was not heeded yet."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note_signal)

    def _saving(self) -> MeshSaving:
        launch = hashlib.sha256(self.setup.secret).hexdigest()[:LAUNCH_DIGITS]
        return MeshSaving(self.recipe, self.folder, self.layout, launch, self.setup.start.saved)

    def _note_signal(self, number: int, _: object) -> None:
        self.signal = number

    def main(self, peers: Mapping[NodeId, str], join: bool, strikes: Mapping[str, int]) -> None:
        """Train until the run is done. `strikes`: samples that ended the computation of earlier peers."""
        self.strikes = strikes
        if join:
            self.port.addresses = dict(peers)
            self.newcomer = Newcomer(
                self.port, list(peers), self._join, self.mailbox.now, self.transport.address
            )
        else:
            start = self.setup.start
            weights = start.copied_weights(self.model, self.layout)
            run = self._begin(start.conductor(self.share), weights, start.optimizer)
            run.peer.meet(peers, self.mailbox.now)
        with rows_named(self.recipe), ExitStack() as closing:
            if self.saving is not None:
                closing.callback(self.saving.close)
            drive(self, self.mailbox, lambda: self.ended, self._due)
        if self.run is not None:
            self.run.flush_log()
        self.transport.close()
        if (count := self.transport.strangers) > 1:
            told = (
                f"peer {self.node} rejected {count:,} connections of processes that are not peers of the run"
            )
            warn(told, "connections_rejected", node=self.node, connections=count)

    # --- what `drive` needs ----------------------------------------------------------------------

    @property
    def alarm(self) -> float:
        """Return the time at which `ring` is due."""
        waiting = self.run.peer if self.run is not None else self.newcomer
        return waiting.alarm if waiting is not None else inf

    def ring(self, now: float) -> None:
        """Handle due alarms."""
        if self.run is not None:
            self.run.peer.ring(now)
            self._follow(now)
        elif self.newcomer is not None:
            self.newcomer.ring(now)
            self._follow(now)

    def receive(self, item: Any, now: float) -> None:
        """Handle a message of a peer, of the own computation, or of the transport."""
        match item:
            case Ready():
                self.is_ready = True
                self._announce(now)
            case StrangerRejected(reason):
                told = f"peer {self.node} rejected a connection: {reason}. Later ones are only counted"
                warn(told, "connection_rejected", node=self.node, reason=reason)
            case Unreachable() | Rejected():
                self._broken(item, now)
            case FromPeer(message=Inject() as fault):
                self._inject(fault, now)
            case FromPeer() if self.port.disturbance.is_cut(item.sender):
                item.release()
            case FromPeer(tensors=Tensors()) if self._is_replaced(item.sender):
                item.release()
            case _ if self.run is not None:
                if isinstance(item, Arrival):
                    self.run.peer.lose_replaced(self._is_replaced, now)
                self.run.peer.receive(item, now)
            case _ if self.newcomer is not None:
                self.newcomer.receive(item, now)
        self._follow(now)

    def _is_replaced(self, peer: NodeId) -> bool:
        return replaced_file(self.folder.path / PEERS, peer).exists()

    def _broken(self, item: Unreachable | Rejected, now: float) -> None:
        """Handle a connection that broke or was not accepted."""
        peer = self.run.peer if self.run is not None else None
        match item:
            case Rejected(reason, by) if by:
                raise JobError(f"{by} does not accept this peer: {reason}", "peer_refused", by=by)
            case Rejected(reason, sender=sender):
                logger.warning("%s", reason)
                if peer is not None and sender:
                    peer.host.handle(ModelRejected(sender, None, reason), now)
            case Unreachable(other, True) if self.newcomer is not None and peer is None:
                self.newcomer.gone(other)
            case Unreachable(other, is_gone) if peer is not None:
                if is_gone:
                    peer.gone(other, now)
                else:
                    peer.membership.unreachable(other, now)
                    peer.membership.greet(other)
                    peer.flush()

    def _inject(self, what: Inject, now: float) -> None:
        """Carry out an injected fault."""
        faults = self.port.disturbance
        if self.run is not None and what.is_logged:
            self.run.peer.host.handle(Struck(what.fault, what.kind, what.node), now)
        elif what.kind == "partition":
            others = self.run.peer.membership.members if self.run is not None else ()
            faults.partition(self.node, what.side, list(others))
        elif what.node == self.node and what.kind == "slow":
            self.compute.pace.slowness = what.factor
        elif what.node == self.node and what.kind in ANSWERED:
            faults.next.append((what.kind, what.seconds))

    def step_seconds(self) -> float:
        """Return its longest recent step, in seconds; 0 if it has finished none."""
        return self.run.peer.membership.step_seconds if self.run is not None else 0.0

    # --- joining -------------------------------------------------------------------------------

    def _begin(
        self, conductor: Conductor, weights: FlatBuffer, optimizer: Mapping[str, Tensor] | None
    ) -> PeerRun:
        run = PeerRun(
            self.share,
            conductor,
            weights,
            optimizer,
            self.port,
            self.transport.address,
            [self._note],
            self.folder.peer_log(self.node),
            self.saving,
            self._is_replacing,
        )
        self.port.membership = run.peer.membership
        run.peer.membership.begin(self.mailbox.now)
        self.run = run
        self._announce(self.mailbox.now)
        return run

    def _is_replacing(self, _: Collection[str]) -> bool:
        """Whether the launcher, which replaces lost peers, still runs."""
        return self.recipe.engine.respawn and os.getppid() == self.launcher

    def _join(self, state: State, tensors: Tensors, sender: NodeId) -> None:
        """Begin with the state of a peer."""
        source = Source(sender, state.records)
        included = IncludedSamples.read(self.folder, [source])
        self.share, conductor = self.share.taking_over(included, source, self.port.addresses)
        conductor.ledger.strikes.update(self.strikes)
        weights = FlatBuffer.empty(self.layout)
        weights.copy_(tensors.weights)
        peer = self._begin(conductor, weights, tensors.optimizer).peer
        peer.join(self.port.addresses, self.mailbox.now)

    def _announce(self, now: float) -> None:
        """Let the own worker join once it is ready and the peer has a model."""
        if self.is_ready and self.run is not None and not self.run.peer.host.conductor.busy:
            price = self.recipe.engine.dollars_per_hour
            self.run.peer.receive(Joined(self.node, price), now)

    # --- under way -----------------------------------------------------------------------------

    def _note(self, record: Record) -> None:
        if self.run is not None:
            self.run.heard(record)

    def _due(self) -> float:
        return self.run.due() if self.run is not None else inf

    def _follow(self, now: float) -> None:
        """Do what follows; when the run is complete, save its model."""
        self._end_if_hung()
        run = self.run
        if run is None:
            is_over = self.signal or self._is_saved or (self.newcomer is not None and self.newcomer.is_alone)
            self.ended = "done" if is_over else ""
            return
        self._heed_signals(run, now)
        run.follow(now)
        if run.log is not None:
            run.log.keep_up(now)
        if run.peer.finished or self.ended:
            run.flush_log()
        if run.final is not None and run.evaluating is None and not run.peer.is_done:
            self._save(run, now)
        if run.peer.finished and self._is_saved:
            run.peer.is_done = True
        if run.peer.is_done and not self.ended:
            run.end(now)
            self.ended = run.peer.ended or "done"

    def _end_if_hung(self) -> None:
        """End the process if its work hangs: a thread cannot be ended. The launcher replaces it."""
        members = self.run.peer.membership.members.values() if self.run is not None else ()
        hung = self.compute.hung(one.step_seconds for one in members)
        if not hung and not self.port.is_hung:
            return
        if self.run is not None:
            self.run.flush_log()
        self.life.report(hung=hung)
        end_process()

    @property
    def _is_saved(self) -> bool:
        """Whether a peer has saved the model of the run."""
        return (self.folder.path / SUMMARY).exists()

    def _heed_signals(self, run: PeerRun, now: float) -> None:
        """Leave the mesh on SIGTERM. On SIGINT, of the launcher or a user, let all peers finish now."""
        received, self.signal = self.signal, 0
        if received == signal.SIGINT:
            run.stop(self._stop_reason(), now)
        elif received == signal.SIGTERM:
            run.peer.membership.leave()
            run.peer.flush()
            run.close_log(now)
            self.ended = "left"

    def _stop_reason(self) -> str:
        """Return the reason for which peers are asked to finish: the launcher's, or Ctrl-C."""
        with suppress(OSError, *DAMAGED):
            return str(json.loads(read_file(self.folder.path / PEERS / STOP)))
        return INTERRUPTED

    def _save(self, run: PeerRun, now: float) -> None:
        """Save the average of all peers as the model of the run, unless another peer saves or has saved its own."""
        with ExitStack() as closing, told_where(self.folder.path / PEERS / LOCK):
            try:
                hold(self.folder.path / PEERS, closing)
            except UsageError:
                return
            if not self._is_saved:
                self._save_alone(run, now)

    def _save_alone(self, run: PeerRun, now: float) -> None:
        assert run.final is not None
        if self.saving is not None:
            self.saving.finish()
        included = IncludedSamples.read(self.folder)
        records = one_history({node: one.log for node, one in included.histories.items()})
        tally = tally_of(records, self.recipe.samples)
        tally.advance(now)
        tally.finish()
        check_learned(tally, run.peer.ended)
        run.final.mean.scatter(self.model)
        write_average(self.folder, self.model, run.final.mean)
        summary = mesh_summary(tally, records, run.peer.ended, run.final, self.folder, included)
        self.folder.write(SUMMARY, summary)


def failure_path(folder: Path, node: NodeId) -> Path:
    """Return the file with the error of a peer that failed."""
    return folder / "peers" / f"{node}.error.json"


def main() -> None:
    """Run one peer."""
    parcel, node, index = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    say = os.dup(1)
    os.dup2(2, 1)  # what the job prints goes into its file
    adopt()
    enter_worker()
    setup: PeerSetup = open_parcel(parcel)
    logging.basicConfig(format="%(levelname)s: %(message)s")
    life = SignsOfLife(say)
    try:
        program = PeerProgram(setup, node, index, life)
        life.begin(program.transport.address, program.step_seconds)
        if told := read_line(sys.stdin, lambda: bool(program.signal)):
            program.main(**json.loads(told))
    except Exception as error:  # noqa: BLE001 - every error ends the run
        with suppress(OSError):
            text = json.dumps(plain_failure(error))
            replace_file(failure_path(Path(setup.folder), node), text.encode())
            print(f"{FAILED}{in_short(error)}", file=sys.stderr)  # noqa: T201 - into the peer's file
        life.report(failed=True)
        sys.exit(FAILED_CODE)
    finally:
        kill_children()


if __name__ == "__main__":
    main()
