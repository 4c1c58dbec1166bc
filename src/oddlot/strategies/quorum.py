"""Rounds that close once a quorum of the workers has reported."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from oddlot.core.commands import Command, Step, Wake
from oddlot.core.events import AlarmFired, Arrived, Event, Leaving, Lost
from oddlot.core.sample_spans import minibatch_cuts
from oddlot.core.strategy import STATE, Narrowed, Traits, View
from oddlot.core.strategy_wrapper import StrategyWrapper
from oddlot.core.support.errors import ProtocolError, UsageError
from oddlot.core.support.validation import Must, NotNegative
from oddlot.core.tasks import Facts, NodeId, Task, UpdateId


@dataclass
class Quorum(StrategyWrapper):
    """Wrap a synchronous strategy and close each round once a quorum of workers has reported.

    After the quorum, the round stays open for a window of grace, or until every worker has reported. Late workers are
    neither waited for nor cancelled: their updates, from an older version, are merged with the next round. A worker
    continues from the merged model, and has one task at a time.

    With `LocalSGD(server=SGD(lr=0.7, momentum=0.9, nesterov=True))` as the inner strategy, this is the paper's method.

    The share of an update is that of the inner strategy, times its samples per local step. An update of staleness s is
    also scaled by (1 + s) ** -`damping`: without it, stale updates and the momentum of `server` make the model
    oscillate.

    Paper: Douillard et al., "Decoupled DiLoCo for Resilient Distributed Pre-training" (2026, arXiv 2604.21428), the
    syncer. There, workers compute during a merge, and models are sent in fragments. Here, a worker waits for the merge
    of its update, and models are sent whole.
    """

    quorum: Annotated[float, Must("above 0 and at most 1", lambda quorum: 0 < quorum <= 1)] = 0.5
    """Share of the workers from which a merge needs an update that is not late, above 0 and at most 1."""
    grace: Annotated[float, Must("from 0 to 1,000", lambda grace: 0 <= grace <= 1_000)] = 0.05
    """Time that a round stays open after the quorum, as a share of the time until the quorum. 0: it closes immediately.
    """
    damping: NotNegative = 1.0
    """Exponent of the staleness damping: an update of staleness s is scaled by (1 + s) ** -damping."""
    round: dict[UpdateId, Facts] = field(default_factory=dict)
    """State: updates of this round. The inner strategy has not received them yet."""
    fresh: dict[UpdateId, NodeId] = field(default_factory=dict)
    """State: updates of this round that are not late, with their workers, if those are still present."""
    began: float = field(default=0.0, metadata=STATE)
    """State: start of the round, or of its first task, in seconds."""
    closes: float | None = field(default=None, metadata=STATE)
    """State: end of the window of grace. None without a quorum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.inner.traits(1).waits_for_all:
            raise UsageError(
                f"inner = {type(self.inner).__name__}(...) must wait for every worker in each round, like LocalSGD and "
                "Synchronous. Your own strategy declares it with `Traits(waits_for_all=True)`",
                "inner_waits_for_no_round",
                "inner",
                inner=type(self.inner).__name__,
            )

    def traits(self, batch_size: int) -> Traits:
        """Return the inner strategy's traits. Rounds wait for a quorum."""
        return replace(super().traits(batch_size), waits_for_all=False, quorum=self.quorum)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect updates, and close the round when every worker has reported or the window of grace is over."""
        self._note(event, view)
        there = self._there(view)
        if self.round and self.closes is None and len(self.fresh) >= self.quorum * there:
            self.closes = view.now + self.grace * (view.now - self.began)
            yield Wake(self.closes)
        complete = not view.tasks or len(self.fresh) >= there
        if self.round and (complete or (self.closes is not None and view.now >= self.closes)):
            yield from self._close(event, view)
        else:  # the inner strategy assigns tasks to workers that do not wait for the merge
            message = AlarmFired(view.now) if isinstance(event, Arrived) else event
            yield from self.inner.on(message, _seen(view, self._without_work(event, view), view.tasks))

    def _note(self, event: Event, view: View) -> None:
        """Record arrived updates and lost workers."""
        if not self.round and not view.tasks:
            self.began = view.now
        match event:
            case Arrived(update):
                self.round[update.id] = update
                if not view.staleness(update) and update.sender in view.nodes:
                    self.fresh[update.id] = update.sender
            case Leaving(node) | Lost(node):
                self.fresh = {update: sender for update, sender in self.fresh.items() if sender != node}

    def _there(self, view: View) -> int:
        """Return the number of workers that have sent an update or may send one."""
        waiting = set(self.fresh.values()) if view.stalled else ()
        return len(view.nodes) - sum(node not in waiting for node in view.stalled)

    def _without_work(self, event: Event, view: View) -> list[NodeId]:
        """Return the idle workers that do not wait for the merge."""
        if isinstance(event, Arrived):
            return [] if event.update.id in self.fresh else [event.update.sender]
        waiting = set(self.fresh.values())
        return [node for node in view.idle if node not in waiting]

    def _close(self, event: Event, view: View) -> Iterator[Command]:
        """Pass the event and then the round's updates to the inner strategy, as if no other workers existed."""
        merged = False
        missing = {id_: Task(id_, one.sender, (), one.based_on, one.kind) for id_, one in self.round.items()}
        if not isinstance(event, Arrived):
            yield from self.inner.on(event, _seen(view, (), missing))
        for update in self.round.values():
            del missing[update.id]
            idle = () if missing else view.idle
            for command in self.inner.on(Arrived(update), _seen(view, idle, missing)):
                merged = merged or isinstance(command, Step)
                yield self._weighed(command, view) if isinstance(command, Step) else command
        if not merged:
            raise ProtocolError(
                f"{type(self.inner).__name__} must make a step when every update of a round has arrived",
                "inner_steps_by_part",
                inner=type(self.inner).__name__,
            )
        self.round, self.fresh = {}, {}
        self.began, self.closes = view.now, None

    def _weighed(self, step: Step, view: View) -> Step:
        """Return the step with shares weighted by samples per local step. Only damping changes their sum."""
        updates = [(share, self.round[update]) for update, share in step.shares.items()]
        weights = [share * _samples_a_step(update, view) for share, update in updates]
        scale = sum(step.shares.values()) / sum(weights)
        trusts = [(1 + view.staleness(update)) ** -self.damping for _, update in updates]
        shares = (scale * weight * trust for weight, trust in zip(weights, trusts, strict=True))
        return replace(step, shares=dict(zip(step.shares, shares, strict=True)))


def _seen(view: View, idle: Iterable[NodeId], tasks: Mapping[str, Task]) -> View:
    """Return the view of the inner strategy. It shows workers as idle only if they have no task."""
    return Narrowed.of(view, {node: None for node in idle if view.has_no_task(node)}, tasks)


def _samples_a_step(update: Facts, view: View) -> float:
    """Return the samples per local step of an update; 1 for a gradient."""
    if update.kind != "delta":
        return 1.0
    return update.samples / (len(minibatch_cuts(update.samples, view.batch)) - 1)
