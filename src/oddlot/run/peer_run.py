"""One peer of a run on a mesh: its share of the training, and what it does for all when it leads."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from torch import Tensor

from oddlot.core.events import Averaged, Evaluated, Stopped
from oddlot.core.membership import Membership
from oddlot.core.random_streams import stream
from oddlot.core.tasks import NodeId
from oddlot.engines.host import Observer
from oddlot.engines.mesh.averaging import Averaging
from oddlot.engines.mesh.messages import Done, Stop
from oddlot.engines.mesh.peer import Peer, PeerHost, PeerPort
from oddlot.history.metrics import Tally
from oddlot.run.intervals import Reminder
from oddlot.run.peer_share import PeerShare
from oddlot.train.flat_buffer import FlatBuffer
from oddlot.train.gates import standard_gates
from oddlot.train.lr_schedules import by_samples
from oddlot.train.store import Store

SNAPSHOT_SECONDS = 5.0
"""Time until a peer that has not sent its weights for an average is asked again."""
REPEAT_SECONDS = 1.0
"""Time between two messages of a peer that it has finished."""


class PeerRun:
    """A peer with its store, its metrics and its goal.

    `weights` are the initial ones, which the peer owns. A peer that joins later begins with the `epoch` and the
    `optimizer` state of another one.
    """

    def __init__(
        self,
        share: PeerShare,
        weights: FlatBuffer,
        port: PeerPort,
        address: str = "",
        epoch: int = 0,
        optimizer: Mapping[str, Tensor] | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        recipe = share.recipe
        self.share, self.goal = share, share.goal
        conductor = share.conductor(epoch)
        self.tally = Tally(share.samples)
        self.store = Store(
            weights,
            recipe.rule,
            schedule=by_samples(recipe.job.lr_schedule, share.samples),
            gates=standard_gates(recipe.config.max_update_ratio),
        )
        if optimizer is not None:
            self.store.load_optimizer(optimizer)
        host = PeerHost(conductor, self.store, port, [self.tally, *observers])
        rng = stream(recipe.config.seed, f"membership {share.node}")
        self.peer = Peer(host, Membership(share.node, address, rng))
        self.evaluation = Reminder(recipe.config.evaluate_every)
        self.evaluates = recipe.job.eval_data is not None
        self.evaluating: Averaging | None = None
        """The average that is being evaluated."""
        self.collects_final = False
        """Whether all peers had finished when the present average was begun."""
        self.final: Averaging | None = None
        """The average of all peers that have finished: the model of the run."""
        self.repeat_at = 0.0

    @property
    def name(self) -> NodeId:
        """Return the name of the peer."""
        return self.share.node

    def due(self) -> float:
        """Return the time at which `follow` is due without a message."""
        average = self.peer.averaging
        again = average.asked_at + SNAPSHOT_SECONDS if average is not None else inf
        return min(again, self.repeat_at if self.peer.finished else self.goal.due(self.tally))

    def follow(self, now: float) -> None:
        """Do what follows from the last message: finish at the goal; if it leads, average and evaluate."""
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
        """Finish, and ask all peers to do so."""
        self.peer.tell_all(Stop(reason))
        self.peer.finish(reason, now)

    def end(self, now: float) -> None:
        """Tell all peers that the model is saved."""
        self.peer.tell_all(Done())
        self.peer.is_done = True
        self.close_log(now)

    def close_log(self, now: float) -> None:
        """Log the traffic of the peer, and that it has stopped."""
        for traffic in self.peer.host.port.traffic():
            self.peer.host.handle(traffic, now)
        self.peer.host.handle(Stopped(), now)

    def _reached(self) -> str:
        """Return the goal that is reached. A metric is that of the average, which only the lead knows."""
        if met := self.goal.reached(self.tally):
            if met.figure in self.tally.quality.metrics:
                self.peer.tell_all(Stop(str(met)))
            return str(met)
        return self.goal.by_epochs if self.peer.host.conductor.done else ""

    def _lead(self, now: float) -> None:
        peer = self.peer
        if peer.averaging is not None and peer.averaging.is_complete:
            self._averaged(peer.averaging, now)
        if peer.averaging is not None and now >= peer.averaging.asked_at + SNAPSHOT_SECONDS:
            peer.ask_for_snapshots(now)
        if peer.averaging is None and self.evaluating is None and self.final is None:
            is_due = self.evaluates and self.evaluation.due(self.tally)
            if peer.all_finished or (is_due and not peer.finished):
                self.collects_final = peer.all_finished
                peer.begin_average(now)
                self._lead(now)  # it is complete if there is no other peer

    def _averaged(self, average: Averaging, now: float) -> None:
        """Log an average, and evaluate it."""
        self.peer.averaging = None
        host = self.peer.host
        host.handle(Averaged(tuple(average.peers), average.disagreement, average.bytes), now)
        if self.collects_final:
            self.final = average
        if self.evaluates:
            self.evaluating = average
            host.port.evaluate(host.conductor.version, average.mean)

    def heard(self, record: Any) -> None:
        """Note the records of the peer: the average was evaluated."""
        if isinstance(record.event, Evaluated):
            self.evaluating = None
