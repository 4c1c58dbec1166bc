"""Compute groups: synchronous inside a group, asynchronous to each other."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

from oddlot.core import events
from oddlot.core.commands import Assign, Blend, Command, Drop, Evaluate, Step, Wake
from oddlot.core.strategy import Strategy, Traits, View
from oddlot.core.strategy_wrapper import StrategyWrapper
from oddlot.core.sub_view import sub_view
from oddlot.core.support.errors import UsageError
from oddlot.core.support.validation import AtLeastOne, NotNegative
from oddlot.core.tasks import NodeId, UpdateId

FREEING_EVENTS = (events.Leaving, events.Lost, events.Cancelled, events.Changed)
"""Events that may free samples for workers of any group."""


@dataclass
class Groups(StrategyWrapper):
    """Split the workers into groups, each with the inner strategy of its own. Groups do not wait for each other.

    A step of a group has the samples of one batch of the job: each of its k workers computes 1/k of them. One group is
    the inner strategy with smaller tasks, and as many groups as workers are `Asynchronous(damping=0)`. Use
    `ProportionalLoad(Synchronous())` as the inner strategy for workers of different speeds.

    Groups differ in size by at most one worker. A worker that joins goes to the smallest group; when workers are lost,
    one without a task moves from the largest group to the smallest.

    With g groups, updates are g - 1 versions stale on average, which acts like an additional momentum of up to
    1 - 1/g (section 3). Lower the optimizer's momentum by as much; it may become negative.

    Paper: Hadjis et al., "Omnivore: An Optimizer for Multi-device Deep Learning on CPUs and GPUs" (2016), section 3;
    Mitliagkas et al., "Asynchrony begets Momentum" (2016).
    """

    groups: AtLeastOne = 2
    """Number of groups, at most the number of workers."""
    damping: NotNegative = 0.0
    """Exponent of the staleness damping: an update of staleness s is scaled by (1 + s) ** -damping."""
    inners: list[Strategy] = field(default_factory=list)
    """State: the strategy of each group."""
    group_of: dict[NodeId, int] = field(default_factory=dict)
    """State: group of each worker, including leaving workers."""
    members: list[list[NodeId]] = field(default_factory=list)
    """State: workers of each group."""
    alarms: list[tuple[float, int]] = field(default_factory=list)
    """State: times of alarms, and the groups that set them."""
    steps: dict[str, int] = field(default_factory=dict)
    """State: groups of the versions whose measurement follows."""
    evaluations: dict[str, list[int]] = field(default_factory=dict)
    """State: groups that requested the evaluation of a version."""
    merges: list[list[int]] = field(default_factory=list)
    """State: versions that each group has made, newer than the start of its oldest open task."""
    based_on: dict[UpdateId, int] = field(default_factory=dict)
    """State: versions that updates of open rounds started from, if they are damped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        traits, name = self.inner.traits(1), type(self.inner).__name__
        unfit = {
            "is for a mesh of peers": traits.mesh,
            "assigns whole shards": traits.shard_tasks,
            "measures rounds of all workers": bool(traits.measured_loads),
        }
        for why, is_so in unfit.items():
            if is_so:
                message = f"inner = {name}(...) {why}, and cannot be split into groups"
                raise UsageError(message, "not_for_groups", "inner", inner=name)

    def validate(self, workers: int, metrics: Collection[str]) -> None:
        """Raise UsageError if there are fewer workers than groups, or if a group is too small for its strategy."""
        if workers < self.groups:
            there = "is 1 worker" if workers == 1 else f"are {workers} workers"
            message = f"groups = {self.groups}, but there {there}: lower groups or add workers"
            raise UsageError(message, "too_few_workers", "groups", k=self.groups, workers=workers)
        super().validate(workers // self.groups, metrics)

    def traits(self, batch_size: int) -> Traits:
        """Return the inner strategy's traits. A step is made by a group alone."""
        inner = super().traits(batch_size)
        if inner.local_steps:
            return replace(inner, waits_for_all=False)
        return replace(inner, waits_for_all=False, updates=1, task_samples=batch_size, task_setting="")

    def on(self, event: events.Event, view: View) -> Iterable[Command]:
        """Pass the event to the groups that it concerns, each with a view of its own workers."""
        if not self.inners:
            self.inners = [deepcopy(self.inner) for _ in range(self.groups)]
            self.merges, self.members = [[] for _ in self.inners], [[] for _ in self.inners]
        if isinstance(event, events.Arrived) and self.damping:
            self.based_on[event.update.id] = event.update.based_on
        version, assigned = view.version, Counter[NodeId]()
        for group, inner_event in self._inner_events(event, view):
            active = [node for node in self.members[group] if node in view.nodes]
            shown = sub_view(
                view, self.members[group], self._samples(active, view), self.merges[group], assigned
            )
            for command in self.inners[group].on(inner_event, shown):
                if isinstance(command, Assign):
                    assigned[command.node] += 1
                if isinstance(command, Step | Blend):
                    version += 1
                    self._note_merge(command, group, version, shown)
                yield self._changed(command, group, active, view)

    def _samples(self, active: Sequence[NodeId], view: View) -> int:
        """Return the largest number of samples of a task in a group with these active workers."""
        return view.batch if self._keeps_batch(view) else -(-view.batch // max(1, len(active)))

    def _keeps_batch(self, view: View) -> bool:
        """Return whether tasks are sequences of local steps. Local steps keep the job's batch size."""
        return self.inner.traits(view.batch).local_steps

    def _note_merge(self, merge: Step | Blend, group: int, version: int, shown: View) -> None:
        """Record a merge of a group, and forget those that none of its open tasks is older than."""
        oldest = min((task.version for task in shown.tasks.values()), default=version)
        self.merges[group] = [*(merged for merged in self.merges[group] if merged > oldest), version]
        if merge.measure or (isinstance(merge, Step) and merge.drift is not None):
            self.steps[str(version)] = group

    def _changed(self, command: Command, group: int, active: Sequence[NodeId], view: View) -> Command:
        """Return a command of a group for the run, and record which event follows it."""
        match command:
            case Assign(node, samples) if samples == self._samples(active, view) and not self._keeps_batch(
                view
            ):
                size, rest = divmod(view.batch, len(active))
                return replace(command, samples=max(1, size + (active.index(node) < rest)))
            case Step() if self.damping:
                bases = {update: self.based_on.pop(update) for update in command.shares}
                trust = {update: (1 + view.version - base) ** -self.damping for update, base in bases.items()}
                return replace(
                    command,
                    shares={update: share * trust[update] for update, share in command.shares.items()},
                )
            case Drop(update):
                self.based_on.pop(update, None)
            case Wake(at):
                self.alarms.append((at, group))
            case Evaluate(version):
                self.evaluations.setdefault(str(version), []).append(group)
        return command

    def _inner_events(self, event: events.Event, view: View) -> Iterator[tuple[int, events.Event]]:
        """Yield the events that groups receive."""
        concerned = self._concerned(event)
        moves = self._rebalance(event, view)
        yield from ((group, event) for group in concerned)
        for node, donor, receiver in moves:
            yield donor, events.Leaving(node)
            yield receiver, events.Joined(node)
        if isinstance(event, FREEING_EVENTS) and view.work_left:
            others = {self.group_of[node] for node in view.idle if node in self.group_of}
            others -= {*concerned, *(receiver for _, _, receiver in moves)}
            yield from ((group, events.AlarmFired(view.now)) for group in sorted(others))

    def _concerned(self, event: events.Event) -> list[int]:
        """Return the groups that receive an event, and update the membership."""
        match event:
            case events.Joined(node):
                smallest = min(range(self.groups), key=lambda group: len(self.members[group]))
                self.group_of[node] = smallest
                self.members[smallest].append(node)
                return [smallest]
            case events.Lost(node):
                return [self._remove(node)] if node in self.group_of else []
            case events.Leaving(node) | events.Cancelled(node=node):
                return [self.group_of[node]] if node in self.group_of else []
            case events.Arrived(update):
                return [self.group_of[update.sender]] if update.sender in self.group_of else []
            case events.Changed(version):
                group = self.steps.get(str(version))
                self.steps = {key: other for key, other in self.steps.items() if int(key) > version}
                return [] if group is None else [group]
            case events.AlarmFired(at):
                due = sorted({group for when, group in self.alarms if when <= at})
                self.alarms = [alarm for alarm in self.alarms if alarm[0] > at]
                return due
            case events.Evaluated(version=version):
                return self.evaluations.pop(str(version), [*range(self.groups)])
            case _:
                return []

    def _remove(self, node: NodeId) -> int:
        """Forget a worker, and return its group."""
        group = self.group_of.pop(node)
        self.members[group].remove(node)
        return group

    def _rebalance(self, event: events.Event, view: View) -> list[tuple[NodeId, int, int]]:
        """Move workers without a task from the largest to the smallest group while their sizes differ by more than 1.

        Return each with its old and its new group.
        """
        if not isinstance(event, events.Joined | events.Lost | events.Arrived):
            return []
        sender = event.update.sender if isinstance(event, events.Arrived) else None
        moves: list[tuple[NodeId, int, int]] = []
        while True:
            sizes = [len(nodes) for nodes in self.members]
            donor, receiver = sizes.index(max(sizes)), sizes.index(min(sizes))
            if sizes[donor] - sizes[receiver] < 2:
                return moves
            free = [node for node in self.members[donor] if node != sender and view.has_no_task(node)]
            if not free:
                return moves
            node = free[-1]
            self._remove(node)
            self.group_of[node] = receiver
            self.members[receiver].append(node)
            moves.append((node, donor, receiver))
