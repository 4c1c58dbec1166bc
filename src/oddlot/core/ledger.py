"""Which samples are to be computed, by whom, and which have reached the model: exactly once per epoch.

Positions 0..size-1 index a seeded order of the data; turning a position into a sample is the worker's
business. A position is always in one place: not leased yet, returned, leased to open tasks, in an update that
waits in the inbox, or merged.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import NamedTuple

from oddlot.core.errors import BadSamples
from oddlot.core.shard_queue import Lane, Lanes
from oddlot.core.spans import Span, joined, samples_in, split
from oddlot.core.tasks import NodeId, TaskId, UpdateId

REFUSALS_UNTIL_BAD = 3
STRIKES_UNTIL_BAD = 3
"""processes that ended or hung while they computed a sample"""
HOW_TO_SKIP = "pass skip_bad=True (--set skip_bad=true)"


class Skipped(NamedTuple):
    """Samples that were given up, and whether that closed an epoch."""

    spans: tuple[Span, ...] = ()
    closed: bool = False


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
    cuts: list[int] = field(default_factory=list)
    """where each shard begins and the last one ends; empty: `shards` of equal size"""
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
    strikes: dict[str, int] = field(default_factory=dict)
    """likewise: how many processes ended or hung while they computed this sample"""

    def __post_init__(self) -> None:
        if not self.lanes:
            equal = [self.size * shard // self.shards for shard in range(self.shards + 1)]
            cuts = self.cuts or equal
            self.lanes = [Lane(a, b, at=a) for a, b in pairwise(cuts)]
        self._index = Lanes(self.lanes)
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
        return self._index.has_work(self._latest)

    @property
    def shard_samples(self) -> int:
        """The samples of the largest shard."""
        return self._index.largest

    @property
    def shards_left(self) -> int:
        """Of how many shards a lease asked for now would not be empty."""
        return self._index.with_work(self._latest)

    def lease(self, task: TaskId, samples: int, node: NodeId, shard: int | None = None) -> tuple[Span, ...]:
        """Lease about `samples` samples of one epoch (see `Lane.take`); empty when there is nothing to do."""
        if shard is None:
            number = self._index.choose(node, self._latest)
        else:
            number = shard if self._has_work(self.lanes[shard]) else None
        if number is None:
            return ()
        spans = self.lanes[number].take(samples)
        self._index.settle(number, node)
        self.leases[task] = Lease(spans, [task])
        return spans

    def share(self, task: TaskId, other: TaskId) -> tuple[Span, ...]:
        """Lease the samples of open task `other` to `task` as well."""
        lease = self.leases[other]
        lease.tasks.append(task)
        self.leases[task] = lease
        return lease.spans

    def arrive(self, task: TaskId, samples: int) -> list[TaskId]:
        """The task brought an update of its first `samples` samples: the rest goes back. The tasks that shared the
        lease: they have come too late."""
        lease = self.leases[task]
        done, rest = split(lease.spans, samples)
        for other in lease.tasks:
            del self.leases[other]
        self.leases[task] = Lease(done, [task])
        self._return(rest)
        return [other for other in lease.tasks if other != task]

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
        self._index.lose(node)

    def merge(self, update: UpdateId) -> bool:
        """The update's samples have reached the model. True when that closed an epoch."""
        spans = self.leases.pop(update).spans
        self._forgive(spans)
        return self._count(spans)

    def refuse(self, task: TaskId, reason: str) -> Skipped:
        """The task's numbers were bad: its samples go back, or are skipped (or stop the run) at the third time."""
        lease = self.leases[task]
        worst = max(self._counted(self.refusals, lease.spans).values())
        if worst < REFUSALS_UNTIL_BAD:
            self.give_back(task)
            return Skipped()
        if not self.skip_bad:
            others = len(self.refusals) - samples_in(lease.spans)
            diverged = (
                f"{others:,} other samples gave bad numbers too: the training has probably diverged. "
                if others
                else ""
            )
            raise BadSamples(
                lease.spans,
                f"gave bad numbers {worst} times, the last time in task {task}: {reason}. {diverged}"
                f"Lower the learning rate, mend the samples, or {HOW_TO_SKIP}",
                others=others,
            )
        for other in lease.tasks:
            del self.leases[other]
        return self._skip(lease.spans)

    def strike(self, spans: tuple[Span, ...], why: str) -> Skipped:
        """A process ended, or hung, while it computed these samples, which have gone back.

        Those with which that happened three times are skipped, or stop the run.
        """
        counts = self._counted(self.strikes, spans)
        deadly = [Span(*place) for place, count in counts.items() if count >= STRIKES_UNTIL_BAD]
        if deadly and not self.skip_bad:
            times = max(counts.values())
            told = f"were being computed by {times} processes that {why}. Mend the samples, or {HOW_TO_SKIP}"
            raise BadSamples(joined(deadly), told)
        found = []
        for span in deadly:
            number = self._index.at(span.start)
            found += self.lanes[number].withdraw(span)
            self._index.note(number)
        return self._skip(joined(found)) if found else Skipped()

    def _counted(self, counts: dict[str, int], spans: tuple[Span, ...]) -> dict[tuple[int, int, int], int]:
        """One more for each of these samples; how many each has now, by its span of one."""
        found = {}
        for epoch, start, stop in spans:
            for position in range(start, stop):
                key = f"{epoch}:{position}"
                counts[key] = found[epoch, position, position + 1] = counts.get(key, 0) + 1
        return found

    def _skip(self, spans: tuple[Span, ...]) -> Skipped:
        self._forgive(spans)
        self.skipped += samples_in(spans)
        return Skipped(spans, self._count(spans))

    def _forgive(self, spans: tuple[Span, ...]) -> None:
        """These samples are done with, and what was counted against them is over."""
        for counts in filter(None, (self.refusals, self.strikes)):
            for epoch, start, stop in spans:
                for position in range(start, stop):
                    counts.pop(f"{epoch}:{position}", None)

    @property
    def _latest(self) -> float:
        """The latest epoch of which anything may be leased now."""
        last = inf if self.epochs is None else self.epochs - 1
        return min(last, self.epoch) if self.epoch_barrier else last

    def _has_work(self, lane: Lane) -> bool:
        return lane.first < lane.last and lane.next_epoch <= self._latest

    def _return(self, spans: tuple[Span, ...]) -> None:
        for span in spans:
            number = self._index.at(span.start)
            self.lanes[number].give_back(span)
            self._index.note(number)

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
