"""The ledger of samples ensures that each sample is merged exactly once per epoch.

Positions 0..size-1 index a seeded order of the data. The worker maps a position to a sample. A position is always in
one state: not leased yet, returned, leased to open tasks, in an update in the inbox, or merged. The module also counts
rejected updates and crashes per sample, to find bad samples.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import NamedTuple

from oddlot.core.sample_spans import Span, joined, samples_in, split, without
from oddlot.core.shard_queue import ShardCursor, ShardQueue
from oddlot.core.support.errors import BadSamples
from oddlot.core.tasks import NodeId, TaskId, UpdateId

STRIKES_UNTIL_BAD = 3
"""Number of processes that end or hang while they compute a sample before it counts as bad."""
HOW_TO_SKIP = "pass skip_bad=True (--skip-bad)"

Counts = dict[str, int]
"""Number of failures by sample. Keys are "epoch:position"."""


def count(counts: Counts, spans: Iterable[Span]) -> dict[Span, int]:
    """Increment the counts of these samples, and return them by position."""
    found = {}
    for epoch, start, stop in spans:
        for position in range(start, stop):
            key = f"{epoch}:{position}"
            counts[key] = found[Span(epoch, position, position + 1)] = counts.get(key, 0) + 1
    return found


def forget(counts: Counts, spans: Iterable[Span]) -> None:
    """Delete the counts of these samples."""
    if counts:
        for epoch, start, stop in spans:
            for position in range(start, stop):
                counts.pop(f"{epoch}:{position}", None)


def by_position(counts: Counts) -> dict[Span, int]:
    """Return the counts by position."""
    places = ((tuple(map(int, key.split(":"))), number) for key, number in counts.items())
    return {Span(epoch, at, at + 1): number for (epoch, at), number in places}


def deadly(counts: Mapping[Span, int], why: str, task: TaskId = "", *, skip_bad: bool) -> list[Span]:
    """Return the samples with three failures, the last one in `task`. Raise BadSamples if there are any, unless
    `skip_bad`."""
    found = [span for span, number in counts.items() if number >= STRIKES_UNTIL_BAD]
    if found and not skip_bad:
        times, last = max(counts.values()), f", the last one in task {task}" if task else ""
        message = (
            f"were being computed by {times} processes that {why}{last}. Fix the samples, or {HOW_TO_SKIP}"
        )
        raise BadSamples(joined(found), message, task=task)
    return found


REJECTIONS_UNTIL_BAD = 3


class Skipped(NamedTuple):
    """Skipped samples, and whether skipping them completed an epoch."""

    spans: tuple[Span, ...] = ()
    closed: bool = False


@dataclass(slots=True)
class Lease:
    """Samples of open tasks, or of an update in the inbox."""

    spans: tuple[Span, ...]
    tasks: list[TaskId]


@dataclass
class SampleLedger:
    """Leases samples to tasks, and accounts for every sample.

    An epoch has `size` samples, and there are `epochs` epochs. `epochs=None` means no limit. With `shards` > 1 the data
    are divided into fixed ranges, and a worker preferably leases from shards that it had before. With `epoch_barrier`,
    an epoch starts only when the previous epoch is completely merged. Otherwise epochs overlap.
    """

    size: int
    epochs: int | None = None
    shards: int = 1
    epoch_barrier: bool = False
    skip_bad: bool = False
    cuts: list[int] = field(default_factory=list)
    """Start of each shard, and end of the last shard. Empty: `shards` of equal size."""
    epoch: int = 0
    """Oldest epoch that is not completely merged."""
    merged: list[int] = field(default_factory=lambda: [0])
    """Samples merged or skipped per epoch, from `epoch` on."""
    skipped: int = 0
    cursors: list[ShardCursor] = field(default_factory=list)
    leases: dict[TaskId, Lease] = field(default_factory=dict)
    """Leases by open task or by update in the inbox. Tasks that share samples share a lease."""
    rejections: dict[str, int] = field(default_factory=dict)
    """By "epoch:position": number of rejected updates with this sample."""
    strikes: dict[str, int] = field(default_factory=dict)
    """By "epoch:position": number of processes that ended or hung while they computed this sample."""

    def __post_init__(self) -> None:
        if not self.cursors:
            equal = [self.size * shard // self.shards for shard in range(self.shards + 1)]
            cuts = self.cuts or equal
            self.cursors = [ShardCursor(a, b, at=a) for a, b in pairwise(cuts)]
        self._index = ShardQueue(self.cursors)
        for lease in list(self.leases.values()):  # restores sharing after reading from JSON
            self.leases.update(dict.fromkeys(lease.tasks, lease))

    @property
    def done(self) -> bool:
        """Return whether every sample of every epoch is merged or skipped."""
        return self.epochs is not None and self.epoch >= self.epochs

    @property
    def merged_in_all(self) -> int:
        """Return the number of samples merged or skipped in all epochs."""
        return self.epoch * self.size + sum(self.merged)

    def merged_spans(self) -> list[Span]:
        """Return the samples that are merged or skipped: all earlier positions that are not leased or returned."""
        taken = [
            Span(epoch, cursor.first, cursor.at if epoch == cursor.epoch else cursor.last)
            for cursor in self.cursors
            for epoch in range(cursor.epoch + 1)
        ]
        returned = [span for cursor in self.cursors for span in cursor.returned]
        return without(taken, [*returned, *(span for lease in self.leases.values() for span in lease.spans)])

    @property
    def merged_in_order(self) -> bool:
        """Whether the merged samples are all samples before some position of the oldest epoch."""
        spans = [span for span in self.merged_spans() if span.epoch >= self.epoch]
        return joined(spans) in ((), (Span(self.epoch, 0, self.merged[0] if self.merged else 0),))

    @property
    def work_left(self) -> bool:
        """Return whether there are samples to lease now."""
        return self._index.has_work(self._latest)

    @property
    def free_spans(self) -> list[Span]:
        """Return the samples to lease now, in this order, if the data have one shard. Fresh ones are of one epoch."""
        only = self.cursors[0]
        spans = list(only.returned)
        if only.at < only.last:
            spans.append(Span(only.epoch, only.at, only.last))
        elif only.epoch + 1 <= self._latest:
            spans.append(Span(only.epoch + 1, only.first, only.last))
        return spans

    @property
    def shard_samples(self) -> int:
        """Return the number of samples of the largest shard."""
        return self._index.largest

    @property
    def shards_left(self) -> int:
        """Return the number of shards with samples to lease now."""
        return self._index.with_work(self._latest)

    def lease(self, task: TaskId, samples: int, node: NodeId, shard: int | None = None) -> tuple[Span, ...]:
        """Lease about `samples` samples of one epoch (see `ShardCursor.take`). Return an empty lease if no samples are
        left."""
        if shard is None:
            number = self._index.choose(node, self._latest)
        else:
            number = shard if self._has_work(self.cursors[shard]) else None
        if number is None:
            return ()
        spans = self.cursors[number].take(samples)
        self._index.settle(number, node)
        self.leases[task] = Lease(spans, [task])
        return spans

    def share(self, task: TaskId, other: TaskId) -> tuple[Span, ...]:
        """Lease the samples of the open task `other` to `task` too."""
        lease = self.leases[other]
        lease.tasks.append(task)
        self.leases[task] = lease
        return lease.spans

    def arrive(self, task: TaskId, samples: int) -> list[TaskId]:
        """Record an update of the first `samples` samples of a task, and put the other samples back into the queue.

        Return the other tasks of the lease. Their updates no longer count.
        """
        lease = self.leases[task]
        done, rest = split(lease.spans, samples)
        for other in lease.tasks:
            del self.leases[other]
        self.leases[task] = Lease(done, [task])
        self._return(rest)
        return [other for other in lease.tasks if other != task]

    def give_back(self, task: TaskId) -> None:
        """End a task or update without a merge. Its samples are leased again before others."""
        lease = self.leases.pop(task, None)
        if lease is None:
            return
        lease.tasks.remove(task)
        if not lease.tasks:
            self._return(lease.spans)

    def lose(self, node: NodeId) -> None:
        """Remove a lost worker from the owners of its shards."""
        self._index.lose(node)

    def merge(self, update: UpdateId) -> bool:
        """Record the merge of an update. Return whether that completed an epoch."""
        spans = self.leases.pop(update).spans
        self._forgive(spans)
        return self._count(spans)

    def reject(self, task: TaskId, reason: str, *, others_wait: bool = False, gate: str = "") -> Skipped:
        """Record a rejected update and return its samples to the queue. The third time, skip them or raise BadSamples.

        `others_wait`: whether valid updates are in the inbox. `gate`: name of the run's gate that rejected it.
        """
        lease = self.leases[task]
        worst = max(count(self.rejections, lease.spans).values())
        if worst < REJECTIONS_UNTIL_BAD:
            self.give_back(task)
            return Skipped()
        if not self.skip_bad:
            others = len(self.rejections) - samples_in(lease.spans)
            all_invalid = not (self.merged_in_all or others_wait)
            what = f"updates that the gate {gate} rejected" if gate else "invalid updates"
            message = f"had {what} {worst} times, the last time in task {task}: {reason}. "
            if not gate and all_invalid:
                message += "Every update so far was invalid: check the loss and the data. "
            elif not gate and others:
                message += f"{others:,} other samples had such updates too: training has probably diverged. "
            advice = "Change the gate" if gate else "Lower the learning rate"
            message += f"{advice}, fix the samples, or {HOW_TO_SKIP}"
            raise BadSamples(lease.spans, message, others, all_invalid=all_invalid)
        for other in lease.tasks:
            del self.leases[other]
        return self._skip(lease.spans)

    def strike(self, spans: tuple[Span, ...], why: str, task: TaskId = "") -> Skipped:
        """Record that a process ended or hung while it computed these samples in `task`.

        The third time, skip the samples or raise BadSamples.
        """
        return self._end(deadly(count(self.strikes, spans), why, task, skip_bad=self.skip_bad))

    def skip_deadly(self) -> Skipped:
        """Skip the samples with three strikes, or raise BadSamples. A peer inherits the counts of earlier peers."""
        return self._end(deadly(by_position(self.strikes), "ended or hung", skip_bad=self.skip_bad))

    def _end(self, spans: list[Span]) -> Skipped:
        """Skip the given samples that are not leased."""
        found = list[Span]()
        for span in spans:
            number = self._index.at(span.start)
            # Otherwise another peer has it.
            if self.cursors[number].first <= span.start < self.cursors[number].last:
                found += self.cursors[number].withdraw(span)
                self._index.note(number)
        return self._skip(joined(found)) if found else Skipped()

    def _skip(self, spans: tuple[Span, ...]) -> Skipped:
        self._forgive(spans)
        self.skipped += samples_in(spans)
        return Skipped(spans, self._count(spans))

    def _forgive(self, spans: tuple[Span, ...]) -> None:
        """Delete the counts of samples that are merged or skipped."""
        forget(self.rejections, spans)
        forget(self.strikes, spans)

    @property
    def _latest(self) -> float:
        """Return the latest epoch with samples that may be leased now."""
        last = inf if self.epochs is None else self.epochs - 1
        return min(last, self.epoch) if self.epoch_barrier else last

    def _has_work(self, cursor: ShardCursor) -> bool:
        return cursor.first < cursor.last and cursor.next_epoch <= self._latest

    def _return(self, spans: tuple[Span, ...]) -> None:
        for span in spans:
            number = self._index.at(span.start)
            self.cursors[number].give_back(span)
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
