"""A run on a simulated mesh: all peers run in this process, with one virtual clock."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from torch import Tensor

from oddlot.core.conductor import Conductor
from oddlot.core.events import Evaluated, FaultInjected, Lost
from oddlot.core.peers import IncludedModel
from oddlot.core.records import Record
from oddlot.core.support.errors import JobError
from oddlot.core.tasks import NodeId, machine_of
from oddlot.engines.base import OpenMesh
from oddlot.engines.host import Envelope, ReceivedUpdate
from oddlot.engines.loop import drive
from oddlot.engines.mesh.newcomer import Newcomer
from oddlot.engines.mesh.peer import Peer
from oddlot.engines.mesh.simulated import SimulatedPort
from oddlot.faults.injector import MeshFaults
from oddlot.history.included_samples import IncludedSamples, PeerHistory
from oddlot.history.run_folder import SUMMARY, RunFolder
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.run.control import RunControl
from oddlot.run.mesh_folder import (
    make_peers_folder,
    mesh_summary,
    warn_of_ending,
    write_average,
    write_failure,
)
from oddlot.run.mesh_resume import SavedMesh, continue_mesh
from oddlot.run.peer_run import PeerRun
from oddlot.run.peer_share import MeshStart, PeerShare
from oddlot.run.recipe import Recipe
from oddlot.run.result import INTERRUPTED, Run
from oddlot.run.saving import Checkpoints
from oddlot.run.watchdogs import check_learned


class SimulatedHosts(RunControl):
    """A run on a simulated mesh, as `Training` is a run with a hub."""

    def __init__(
        self,
        recipe: Recipe,
        open_mesh: OpenMesh,
        closing: ExitStack,
        folder: RunFolder | None = None,
        resume: bool = False,
    ) -> None:
        super().__init__(recipe, folder, "the peers", resume=resume)
        recipe = self.recipe
        self.names, self.closing = tuple(recipe.engine.names), closing
        self.records: list[Record] = []
        self.runs: dict[NodeId, PeerRun] = {}
        self.sources: dict[NodeId, list[IncludedModel]] = {}
        """Models that the initial weights of each peer include."""
        past = continue_mesh(recipe, folder, self.layout, self.names) if folder and resume else None
        self.start = past.start if past else MeshStart()
        self.earlier = past.earlier if past else []
        self.checkpoints = None
        if folder is not None:
            self.begin_folder(folder, is_new=past is None)
            make_peers_folder(folder)
            self.checkpoints = Checkpoints.of_peers(recipe, folder, self.layout, self.start.saved)
            closing.callback(self.checkpoints.close)
        self.mesh = open_mesh(
            self.run_data, self._make, past.now if past else 0.0, past.taken if past else ()
        )
        self.faults = self._faults(past)
        for record in self.earlier:
            self.records.append(record)
            self.tally(record)

    def run(self) -> Run:
        """Train until every peer has reached its share of the goal, and return the average of their models."""
        try:
            with self.stop.heard():
                ended = drive(self, self.mesh, self._ended, self._due)
                check_learned(self.tally, ended)
        except JobError as error:
            if self.folder is not None:
                self._end_logs()
                write_failure(self.folder, self.recipe, error, self.mesh.now)
            raise
        lead = self._lead()
        final = lead.final if lead else None
        mean = final.mean if final else self.start.copied_weights(self.model, self.layout)
        mean.scatter(self.model)
        self.model.eval()
        self.tally.finish()
        included = self._included()
        summary = mesh_summary(self.tally, self.records, ended, final, self.folder, included)
        warn_of_ending(summary, self.tally, mean)
        path = None
        if self.folder is not None:
            path = self.folder.path
            self._end_logs()
            if self.checkpoints is not None:
                self.checkpoints.finish()
                self.announce_checkpoint(self.checkpoints.newly_completed())
            write_average(self.folder, self.model, mean)
            self.folder.write(SUMMARY, summary)
        return Run(self.model, summary, self.tally.quality.history, ended, path, self.records)

    def _end_logs(self) -> None:
        """Complete and flush the logs of all peers."""
        for run in self.runs.values():
            run.close_log(self.mesh.now)
            run.flush_log()

    # --- the host interface of `drive` ----------------------------------------------------------

    @property
    def alarm(self) -> float:
        """Return infinity, because the mesh schedules the alarms of peers."""
        return inf

    def ring(self, now: float) -> None:
        """Let all peers act at the present time."""
        for run in list(self.runs.values()):
            run.follow(now)

    def receive(self, envelope: Envelope, now: float) -> None:
        """Deliver a message to its peer."""
        node, message = envelope.to, envelope.message
        if isinstance(message, ReceivedUpdate) and node in self.runs:
            self.runs[node].peer.lose_replaced(self.mesh.replaced.__contains__, now)
        self.mesh.deliver(envelope)
        run = self.runs.get(node)
        if run is not None:
            if node not in self.mesh.peers:
                del self.runs[node]
                run.peer.host.handle(Lost(node), now)
                return
            run.follow(now)
            self.mesh.plan_alarm(node)

    # --- setting up ----------------------------------------------------------------------------

    def _make(self, node: NodeId, port: SimulatedPort) -> "Peer | Newcomer":
        """Return a peer with the initial state or, if other peers have trained, one that requests their state."""
        trained = [name for name, run in self.runs.items() if run.tally.versions or self.sources[name]]
        if node in self.start.conductors or not trained:
            weights = self.start.copied_weights(self.model, self.layout)
            share = self._share(node)
            peer = self._begin(share, port, self.start.conductor(share), weights, self.start.optimizer)
            self._introduce(node)
            return peer
        return Newcomer(port, trained, partial(self._join, node, port), self.mesh.now, node)

    def _share(self, node: NodeId) -> PeerShare:
        return PeerShare(self.recipe, node, self.names, self.start.done)

    def _begin(
        self, share: PeerShare, port: SimulatedPort, conductor: Conductor, weights: FlatBuffer, optimizer: Any
    ) -> Peer:
        node = share.node
        run = PeerRun(
            share,
            conductor,
            weights,
            optimizer,
            port,
            node,
            [lambda record: self._log(node, record)],
            self.folder.log_of(node) if self.folder else None,
            self.checkpoints,
            self.mesh.will_return,
        )
        run.peer.membership.begin(self.mesh.now)
        self.runs[node] = run
        self.mesh.replaced.update(one for one in self.sources if machine_of(one) == machine_of(node))
        self.sources[node] = conductor.peers.sources
        if run.log is not None:
            self.closing.callback(run.log.close)
        return run.peer

    def _introduce(self, node: NodeId) -> None:
        """Introduce a peer to all others, and all others to it."""
        now, peer = self.mesh.now, self.runs[node].peer
        for name, other in self.runs.items():
            if name != node:
                other.peer.meet({node: node}, now)
                peer.meet({name: name}, now)
                self.mesh.plan_alarm(name)

    def _join(
        self,
        node: NodeId,
        port: SimulatedPort,
        source: IncludedModel,
        given: FlatBuffer,
        optimizer: Mapping[str, Tensor] | None,
    ) -> None:
        """Replace a newcomer by a peer with the state that it received."""
        weights = FlatBuffer.empty(self.layout)
        weights.copy_(given)
        there, now = self.mesh.peers[node], self.mesh.now
        newcomer = there.peer
        assert isinstance(newcomer, Newcomer)
        share, conductor = self._share(node).taking_over(self._included(source), source, self.runs)
        there.peer = peer = self._begin(share, port, conductor, weights, optimizer)
        peer.join({name: name for name in self.runs if name != node}, now)
        for message in newcomer.waiting:
            peer.receive(message, now)

    def _included(self, *sources: IncludedModel) -> IncludedSamples:
        """Return the samples in the models of all peers, including lost peers."""
        if self.folder is not None and self.earlier:  # record numbers include lost work
            for run in self.runs.values():
                run.flush_log()
            return IncludedSamples.read(self.folder, sources)
        logs: dict[NodeId, list[Record]] = {}
        for record in self.records:
            logs.setdefault(record.peer or "", []).append(record)
        histories = [
            PeerHistory(node, list(enumerate(log)), self.sources[node]) for node, log in logs.items()
        ]
        return IncludedSamples(histories, sources)

    # --- under way -----------------------------------------------------------------------------

    def _log(self, node: NodeId, record: Record) -> None:
        """Pass a record of a peer to observers. Evaluations get the number of merges of all peers as version."""
        event = record.event
        if isinstance(event, Evaluated):
            event = replace(event, version=self.tally.versions)
            self.runs[node].heard(record)
        message = replace(record, event=event, peer=node)
        self.records.append(message)
        for observer in self.observers:
            observer(message)

    def _faults(self, past: SavedMesh | None) -> MeshFaults | None:
        chaos = self.recipe.config.chaos
        if chaos is None:
            return None
        log = past.log if past else None
        return MeshFaults(
            self.mesh, chaos, lambda: self.mesh.now, self._note_fault, lambda: list(self.runs), log
        )

    def _note_fault(self, injected: FaultInjected) -> None:
        """Write a fault into the log of a peer that it does not affect, if possible."""
        others = [run for node, run in self.runs.items() if node != injected.node]
        for run in (others or list(self.runs.values()))[:1]:
            run.peer.host.handle(injected, self.mesh.now)

    def _ended(self) -> str:
        self.tally.advance(self.mesh.now)
        if self.checkpoints is not None:
            self.announce_checkpoint(self.checkpoints.newly_completed())
        if self.faults is not None:
            self.faults.run_due(self.tally.versions)
        lead = self._lead()
        if self.stop.signal and lead is None:
            return INTERRUPTED
        stopped = INTERRUPTED if self.stop.signal else self.stopped
        if stopped and lead is not None and not lead.peer.stop and lead.final is None:
            if self.stop.signal:
                self.callbacks.interrupt()
            lead.stop(stopped, self.mesh.now)
        if lead is not None and lead.final is not None and lead.evaluating is None:
            return lead.peer.ended
        return ""

    def _lead(self) -> PeerRun | None:
        for run in self.runs.values():
            if run.peer.is_lead:
                return run
        return None

    def _due(self) -> float:
        lead = self._lead()
        due = lead.due() if lead is not None else inf
        return due if self.faults is None else min(due, self.faults.schedule.next_time)
