"""One peer of a run on a mesh: its share of the training, and averages for all peers if it is the lead."""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oddlot.core.conductor import Conductor
from oddlot.core.events import Averaged, Evaluated, Stopped
from oddlot.core.membership import Membership
from oddlot.core.records import HostState
from oddlot.core.support.random_streams import stream
from oddlot.core.tasks import NodeId, machine_of
from oddlot.engines.host import Observer
from oddlot.engines.mesh.averaging import Averaging
from oddlot.engines.mesh.peer import Peer
from oddlot.engines.mesh.peer_host import PeerPort
from oddlot.history.log import Log, has_header, read_log
from oddlot.history.metrics import Tally, tally_of
from oddlot.model.arrival import norm_of
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.run.peer_share import TOTALS, PeerShare
from oddlot.run.saving import Checkpoints
from oddlot.run.session import Session
from oddlot.run.watchdogs import diverged

SNAPSHOT_SECONDS = 5.0
"""Seconds between requests to a peer that has not sent its weights for an average."""
REPEAT_SECONDS = 1.0
"""Seconds between two messages that a peer has finished."""

REPLACEMENT_SECONDS = 30.0
"""Most seconds to wait for the replacement of a lost peer at the end of a run."""


class Purpose(NamedTuple):
    """Uses of an average."""

    evaluation: bool = False
    checkpoint: bool = False
    final: bool = False


class PeerRun:
    """A peer with its store, its log, its metrics and its goal.

    It owns its initial `weights` and copies the `optimizer` state. It continues `log` if the file exists. As the lead,
    it writes `checkpoints`. At the end it waits for replacements of lost machines while `is_replacing(machines)`.
    """

    def __init__(
        self,
        share: PeerShare,
        conductor: Conductor,
        weights: FlatBuffer,
        optimizer: Mapping[str, Tensor] | None,
        port: PeerPort,
        address: str = "",
        observers: Sequence[Observer] = (),
        log: Path | None = None,
        checkpoints: Checkpoints | None = None,
        is_replacing: Callable[[Collection[str]], bool] = lambda _: False,
    ) -> None:
        recipe = share.recipe
        self.share = share
        is_resumed = log is not None and log.exists() and has_header(log)
        tally = tally_of(list(read_log(log)), share.samples) if log and is_resumed else Tally(share.samples)
        self.session = session = Session(recipe, conductor, weights, tally, share.goal, saves_first=True)
        self.tally, self.store = tally, session.store
        if optimizer is not None:
            self.store.load_optimizer(optimizer)
        self.log = Log(log, conductor) if log is not None else None
        rng = stream(recipe.config.seed, f"membership {share.node}")
        membership = Membership(share.node, address, rng)
        self.peer = Peer.of(conductor, self.store, port, membership, [tally, *observers], self.log)
        self.checkpoints = checkpoints
        if checkpoints is not None:
            self.peer.host_state = self._state
        self.evaluating: Averaging | None = None
        """The average that is being evaluated."""
        self.evaluating_since = inf
        self.purpose = Purpose()
        """Uses of the present average."""
        self.final: Averaging | None = None
        """The average of all finished peers: the model of the run."""
        self.repeat_at = 0.0
        self.is_replacing = is_replacing
        self.waits_until = inf
        """End of its wait for replacements, once all running peers have finished."""

    @property
    def name(self) -> NodeId:
        """Return the name of the peer."""
        return self.share.node

    def due(self) -> float:
        """Return the time when `follow` is due if no message arrives."""
        average = self.peer.averaging
        again = average.asked_at + SNAPSHOT_SECONDS if average is not None else inf
        return min(again, self.repeat_at if self.peer.finished else self.session.goal.due(self.tally))

    def follow(self, now: float) -> None:
        """Finish if the goal is reached. As the lead, make averages and evaluate them. Call this after each message."""
        self.tally.advance(now)
        peer = self.peer
        if not peer.finished:
            if reason := peer.stop or self._reached():
                peer.finish(reason, now)
                self.repeat_at = now + REPEAT_SECONDS
        elif now >= self.repeat_at and not peer.is_done:
            peer.say_finished()
            self.repeat_at = now + REPEAT_SECONDS
        if peer.is_lead:
            self._lead(now)

    def stop(self, reason: str, now: float) -> None:
        """Finish, and ask all peers to finish, unless the final average exists."""
        if self.final is None:
            self.peer.stop_all(reason)
            self.peer.finish(reason, now)

    def end(self, now: float) -> None:
        """Notify all peers that the model is saved, and complete the log."""
        self.peer.end_all()
        self.close_log(now)

    def close_log(self, now: float) -> None:
        """Log the traffic of the peer and its stop."""
        for traffic in self.peer.host.port.traffic():
            self.peer.host.handle(traffic, now)
        self.peer.host.handle(Stopped(), now)

    def flush_log(self) -> None:
        """Flush the log. Raise JobError if the file was removed, replaced or changed."""
        if self.log is not None:
            self.log.check()

    def _reached(self) -> str:
        """Return the term of the goal that is reached, as text. Empty: none.

        Only the lead knows the metrics of the average, so it notifies the other peers.
        """
        if met := self.session.reached():
            if met.figure in self.tally.quality.metrics:
                self.peer.stop_all(str(met))
            return str(self.share.recipe.goal.terms[self.session.goal.terms.index(met)])
        return self.session.reached_epochs

    def _lead(self, now: float) -> None:
        peer = self.peer
        if peer.averaging is not None and peer.averaging.is_complete:
            self._averaged(peer.averaging, now)
        is_measuring = self.final is not None and self.evaluating is not None
        if is_measuring and self.session.gives_up_measuring(self.evaluating_since, now):
            self.evaluating = None
        if peer.averaging is not None and now >= peer.averaging.asked_at + SNAPSHOT_SECONDS:
            peer.ask_for_snapshots(now)
        if peer.averaging is None and self.evaluating is None and self.final is None:
            self.purpose = self._due_purpose(now)
            if any(self.purpose):
                peer.begin_average(now, with_state=self.purpose.checkpoint)
                self._lead(now)  # the average is complete if there is no other peer

    def _due_purpose(self, now: float) -> Purpose:
        """Return the uses that need an average now. A finished peer makes only the final average."""
        evaluation = self.session.evaluation_is_due()
        checkpoint = self.checkpoints is not None and self.session.checkpoint_is_due()
        if not self.peer.all_finished(now):
            self.waits_until = inf  # a replacement has arrived
        elif not self._awaits_replacement():
            return Purpose(self.session.evaluates, self.checkpoints is not None, True)
        return Purpose() if self.peer.finished else Purpose(evaluation, checkpoint)

    def _awaits_replacement(self) -> bool:
        """Return whether to wait for the replacement of a lost peer that had not reached its share of the goal."""
        conductor, share = self.peer.host.conductor, self.share
        living = set(map(machine_of, conductor.peers.in_order()))
        missing = [name for name in share.names if name not in living]
        together = share.goal.epochs is not None or any(one.figure in TOTALS for one in share.goal.terms)
        if not together or self.peer.stop or not missing or not self.is_replacing(missing):
            return False
        self.waits_until = min(self.waits_until, conductor.now + REPLACEMENT_SECONDS)
        return self.tally.seconds < self.waits_until

    def _averaged(self, average: Averaging, now: float) -> None:
        """Log a complete average, and evaluate or save it."""
        self.peer.averaging = None
        host = self.peer.host
        is_saved = self.purpose.final or self.purpose.checkpoint
        if is_saved and not isfinite(norm_of(average.mean)):
            raise diverged(host.conductor.version)
        peers, records = zip(*average.sources, strict=True)
        size, is_final = average.bytes, self.purpose.final
        host.handle(Averaged(peers, average.disagreement, size, records, is_final), now)
        if self.purpose.final:
            self.final = average
        if self.purpose.checkpoint and self.checkpoints is not None:
            self._save(average, self.checkpoints)
        if self.purpose.evaluation:
            self.evaluating, self.evaluating_since = average, now
            host.port.evaluate(host.conductor.version, average.mean)

    def _save(self, average: Averaging, checkpoints: Checkpoints) -> None:
        """Write a checkpoint of the average, with the optimizer state of this peer."""
        if self.purpose.final:
            checkpoints.finish()
        version = sum(one.conductor["version"] for one in average.host_states.values())
        weights = {f"weights/{name}": tensor for name, tensor in average.mean.sections()}
        tensors = {"version": torch.tensor(version), **weights, **self.store.optimizer_tensors()}
        checkpoints.write(version, average.host_states, tensors)

    def _state(self) -> HostState:
        """Return the state of the peer, after flushing its log."""
        assert self.log is not None, "checkpoints need a log"
        self.log.check()
        return HostState(self.peer.host.conductor.to_plain(), self.log.records)

    def heard(self, record: Any) -> None:
        """Handle a record of the peer: an evaluation may be finished."""
        if isinstance(record.event, Evaluated):
            self.evaluating = None
