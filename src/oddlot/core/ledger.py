"""Which samples are to be computed, by whom, and which have reached the model: exactly once per epoch.

Positions 0..size-1 index a seeded order of the data; turning a position into a sample is the worker's
business. A position is always in one place: not leased yet, returned, leased to open tasks, in an update that
waits in the inbox, or merged.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise

from oddlot.core.errors import BadSamples
from oddlot.core.words import NodeId, Span, TaskId, UpdateId, samples_in, split

REFUSALS_UNTIL_BAD = 3
MOST_SPANS = 64
"""of a lease: a task stays a small message, however torn what came back is"""


@dataclass(slots=True)
class Lane:
    """A range of positions that is leased in order, epoch after epoch: all of the data, or one shard."""

    first: int
    last: int
    epoch: int = 0
    at: int = 0
    """the next fresh position of `epoch`"""
    returned: list[Span] = field(default_factory=list)
    """leased first; sorted, touching spans joined"""
    home: NodeId | None = None
    """the node that was given this lane last, and may still hold its data"""

    def give_back(self, span: Span) -> None:
        """Put the span among the returned ones and join what touches."""
        index = bisect_left(self.returned, span)
        self.returned.insert(index, span)
        for left in (index, index - 1):
            if 0 <= left < len(self.returned) - 1:
                a, b = self.returned[left], self.returned[left + 1]
                if a.epoch == b.epoch and a.stop == b.start:
                    self.returned[left : left + 2] = [Span(a.epoch, a.start, b.stop)]

    def take(self, samples: int) -> tuple[Span, ...]:
        """Up to `samples` samples of one epoch, in at most `MOST_SPANS` spans: returned ones first, then fresh ones.

        One more where it would be left alone.
        """
        taken: list[Span] = []
        several = samples > 1
        while samples and len(taken) < MOST_SPANS and (span := self._first()):
            epoch, start, last = span
            if taken and epoch != taken[0].epoch:
                break
            stop = min(last, start + samples)
            if several and last - stop == 1:
                stop = last
            if not self.returned:
                self.at = stop
            elif stop < last:
                self.returned[0] = Span(epoch, stop, last)
            else:
                del self.returned[0]
            taken.append(Span(epoch, start, stop))
            samples = max(0, samples - (stop - start))
        return tuple(taken)

    def _first(self) -> Span | None:
        if self.returned:
            return self.returned[0]
        return Span(self.epoch, self.at, self.last) if self.at < self.last else None


@dataclass(slots=True)
class Lease:
    """Samples that are being computed, or that an update in the inbox has brought."""

    spans: tuple[Span, ...]
    tasks: list[TaskId]


@dataclass
class Ledger:
    """Leases samples and accounts for every one of them.

    `size` samples an epoch, `epochs` of them (None: no end). With `shards` > 1 the data are cut into that many
    fixed ranges and a node is preferably leased what it had before. `epoch_barrier` opens an epoch only when the
    one before is wholly merged; otherwise epochs overlap.
    """

    size: int
    epochs: int | None = None
    shards: int = 1
    epoch_barrier: bool = False
    skip_bad: bool = False
    epoch: int = 0
    """the oldest epoch that is not wholly merged"""
    merged: list[int] = field(default_factory=lambda: [0])
    """samples merged or skipped, from `epoch` on"""
    skipped: int = 0
    lanes: list[Lane] = field(default_factory=list)
    leases: dict[TaskId, Lease] = field(default_factory=dict)
    """by open task, or by update that waits in the inbox; tasks that share samples share the lease"""
    refusals: dict[str, int] = field(default_factory=dict)
    """by "epoch:position": how often an update with this sample was refused"""

    def __post_init__(self) -> None:
        if not self.lanes:
            cuts = [self.size * shard // self.shards for shard in range(self.shards + 1)]
            self.lanes = [Lane(a, b, at=a) for a, b in pairwise(cuts)]
        for lease in list(self.leases.values()):  # read back from JSON: what was shared is shared again
            self.leases.update(dict.fromkeys(lease.tasks, lease))

    @property
    def done(self) -> bool:
        """Every sample of every epoch is merged or skipped."""
        return self.epochs is not None and self.epoch >= self.epochs

    @property
    def merged_in_all(self) -> int:
        """Samples merged or skipped, of all epochs."""
        return self.epoch * self.size + sum(self.merged)

    @property
    def work_left(self) -> bool:
        """A lease asked for now would not be empty."""
        return any(self._has_work(lane) for lane in self.lanes)

    def lease(self, task: TaskId, samples: int, node: NodeId, shard: int | None = None) -> tuple[Span, ...]:
        """Lease about `samples` samples of one epoch (see `Lane.take`); empty when there is nothing to do."""
        lane = self._choose(node, shard)
        if lane is None:
            return ()
        if not lane.returned and lane.at == lane.last:
            lane.epoch, lane.at = lane.epoch + 1, lane.first
        spans = lane.take(samples)
        lane.home = node
        self.leases[task] = Lease(spans, [task])
        return spans

    def share(self, task: TaskId, other: TaskId) -> tuple[Span, ...]:
        """Lease the samples of open task `other` to `task` as well."""
        lease = self.leases[other]
        lease.tasks.append(task)
        self.leases[task] = lease
        return lease.spans

    def arrive(self, task: TaskId, samples: int) -> None:
        """The task brought an update of its first `samples` samples: the rest goes back, and tasks that
        share the lease have come too late."""
        lease = self.leases[task]
        done, rest = split(lease.spans, samples)
        for other in lease.tasks:
            del self.leases[other]
        self.leases[task] = Lease(done, [task])
        self._return(rest)

    def give_back(self, task: TaskId) -> None:
        """The task or update is over without a merge: its samples are leased again first."""
        lease = self.leases.pop(task, None)
        if lease is None:
            return
        lease.tasks.remove(task)
        if not lease.tasks:
            self._return(lease.spans)

    def lose(self, node: NodeId) -> None:
        """The node is gone, and nobody holds the data of its shards."""
        for lane in self.lanes:
            if lane.home == node:
                lane.home = None

    def merge(self, update: UpdateId) -> bool:
        """The update's samples have reached the model. True when that closed an epoch."""
        spans = self.leases.pop(update).spans
        self._forgive(spans)
        return self._count(spans)

    def refuse(self, task: TaskId, reason: str) -> bool:
        """The task's numbers were bad: its samples go back, or are skipped (or stop the run) at the third time.

        True when skipping them closed an epoch.
        """
        lease = self.leases[task]
        worst = 0
        for epoch, start, stop in lease.spans:
            for position in range(start, stop):
                key = f"{epoch}:{position}"
                self.refusals[key] = self.refusals.get(key, 0) + 1
                worst = max(worst, self.refusals[key])
        if worst < REFUSALS_UNTIL_BAD:
            self.give_back(task)
            return False
        if not self.skip_bad:
            raise BadSamples(
                lease.spans,
                f"gave bad numbers {worst} times, the last time in task {task}: {reason}. "
                "Lower the learning rate, mend the samples, or pass skip_bad=True (--set skip_bad=true)",
            )
        for other in lease.tasks:
            del self.leases[other]
        self._forgive(lease.spans)
        self.skipped += samples_in(lease.spans)
        return self._count(lease.spans)

    def _forgive(self, spans: tuple[Span, ...]) -> None:
        """These samples are done with, and their refusals are over."""
        for epoch, start, stop in spans if self.refusals else ():
            for position in range(start, stop):
                self.refusals.pop(f"{epoch}:{position}", None)

    def _has_work(self, lane: Lane) -> bool:
        if lane.returned or lane.at < lane.last:
            return True
        following = lane.epoch + 1
        if lane.first == lane.last or (self.epochs is not None and following >= self.epochs):
            return False
        return not self.epoch_barrier or self.epoch >= following

    def _choose(self, node: NodeId, shard: int | None) -> Lane | None:
        lanes = self.lanes if shard is None else [self.lanes[shard]]
        if len(lanes) == 1:
            return lanes[0] if self._has_work(lanes[0]) else None
        ready = (lane for lane in lanes if self._has_work(lane))
        return min(ready, key=lambda lane: _reluctance(lane, node), default=None)

    def _return(self, spans: tuple[Span, ...]) -> None:
        for span in spans:
            self._lane_of(span).give_back(span)

    def _lane_of(self, span: Span) -> Lane:
        if len(self.lanes) == 1:
            return self.lanes[0]
        return next(lane for lane in self.lanes if lane.first <= span.start < lane.last)

    def _count(self, spans: tuple[Span, ...]) -> bool:
        for epoch, start, stop in spans:
            while len(self.merged) <= epoch - self.epoch:
                self.merged.append(0)
            self.merged[epoch - self.epoch] += stop - start
        before = self.epoch
        while self.merged and self.merged[0] == self.size:
            self.merged.pop(0)
            self.epoch += 1
        return self.epoch > before


def _reluctance(lane: Lane, node: NodeId) -> tuple[int, int, int]:
    """Lanes of the oldest epoch first; among them what the node holds, then what nobody holds."""
    epoch = lane.returned[0].epoch if lane.returned else lane.epoch + (lane.at == lane.last)
    return epoch, {node: 0, None: 1}.get(lane.home, 2), lane.first
