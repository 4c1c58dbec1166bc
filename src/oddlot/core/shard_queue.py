"""The shards of the data, and the choice of the shard to lease from next in logarithmic time."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from oddlot.core.sample_spans import Span
from oddlot.core.tasks import NodeId

MAX_SPANS = 64
"""Largest number of spans of a lease. It limits the size of task messages."""


@dataclass(slots=True)
class ShardCursor:
    """A range of positions that is leased in order, epoch after epoch: all of the data, or one shard."""

    first: int
    last: int
    epoch: int = 0
    at: int = 0
    """Next fresh position of `epoch`."""
    returned: list[Span] = field(default_factory=list)
    """Returned spans, sorted, with adjacent spans joined. They are leased first."""
    home: NodeId | None = None
    """Worker that leased from this shard last and may still have its data. None if there is only one shard."""

    @property
    def next_epoch(self) -> int:
        """Return the epoch of the next lease."""
        return self.returned[0].epoch if self.returned else self.epoch + (self.at == self.last)

    def give_back(self, span: Span) -> None:
        """Add a span to the returned spans, and join adjacent spans."""
        index = bisect_left(self.returned, span)
        self.returned.insert(index, span)
        for left in (index, index - 1):
            if 0 <= left < len(self.returned) - 1:
                a, b = self.returned[left], self.returned[left + 1]
                if a.epoch == b.epoch and a.stop == b.start:
                    self.returned[left : left + 2] = [Span(a.epoch, a.start, b.stop)]

    def withdraw(self, span: Span) -> list[Span]:
        """Remove the parts of a span that are returned or not leased yet, and return them."""
        self._return_fresh(span)
        found, kept = [], []
        for one in self.returned:
            start, stop = max(one.start, span.start), min(one.stop, span.stop)
            if one.epoch != span.epoch or start >= stop:
                kept.append(one)
                continue
            found.append(Span(one.epoch, start, stop))
            around = Span(one.epoch, one.start, start), Span(one.epoch, stop, one.stop)
            kept += [part for part in around if part.start < part.stop]
        self.returned = kept
        return found

    def _return_fresh(self, span: Span) -> None:
        """Count fresh positions up to the end of a span as returned."""
        while (self.epoch, self.at) < (span.epoch, span.stop):
            stop = span.stop if self.epoch == span.epoch else self.last
            if self.at < stop:
                self.give_back(Span(self.epoch, self.at, stop))
            self.at = stop
            if self.epoch < span.epoch:
                self.epoch, self.at = self.epoch + 1, self.first

    def take(self, samples: int) -> tuple[Span, ...]:
        """Lease up to `samples` samples of one epoch, in at most `MAX_SPANS` spans: returned samples first.

        A single sample that would be left over is leased too. If no samples of this epoch are left, start the next
        epoch.
        """
        if not self.returned and self.at == self.last:
            self.epoch, self.at = self.epoch + 1, self.first
        taken: list[Span] = []
        several = samples > 1
        while samples and len(taken) < MAX_SPANS and (span := self._first()):
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


class _Epoch:
    """The shards with next samples in one epoch: heaps of their numbers. Entries may be outdated."""

    __slots__ = ("all", "by_home", "count")

    def __init__(self) -> None:
        self.count = 0
        self.all: list[int] = []
        self.by_home: dict[NodeId | None, list[int]] = {}


class ShardQueue:
    """Finds the next shard for a node in logarithmic time.

    The order of preference: shards of the oldest epoch; among these, a shard that the worker has; one that no worker
    has; the first shard. Call `note` after every change.
    """

    def __init__(self, cursors: list[ShardCursor]) -> None:
        self.cursors = cursors
        self._firsts = [cursor.first for cursor in cursors]
        self.largest = max(cursor.last - cursor.first for cursor in cursors)
        """Samples of the largest shard."""
        self._epochs: dict[int, _Epoch] = {}
        self._placed: list[tuple[int, NodeId | None] | None] = [None] * len(cursors)
        self._held: dict[NodeId, dict[int, None]] = {}
        self._only = cursors[0] if len(cursors) == 1 else None
        """The only shard. It has all of the data, and so has every worker. None if there are several shards."""
        for number, cursor in enumerate(cursors):
            if cursor.home is not None:
                self._held.setdefault(cursor.home, {})[number] = None
            self.note(number)

    def at(self, position: int) -> int:
        """Return the number of the shard of a position."""
        return bisect_right(self._firsts, position) - 1

    def note(self, number: int) -> None:
        """Record that a shard's next samples may have changed."""
        if self._only:
            return
        cursor, placed = self.cursors[number], self._placed[number]
        epoch, home = place = cursor.next_epoch, cursor.home
        if place == placed or cursor.first == cursor.last:
            return
        self._placed[number] = place
        found = self._epochs.setdefault(epoch, _Epoch())
        heappush(found.by_home.setdefault(home, []), number)
        if placed is None or placed[0] != epoch:
            heappush(found.all, number)
            found.count += 1
            if placed is not None:
                self._leave(placed[0])

    def settle(self, number: int, node: NodeId) -> None:
        """Record that a worker leased samples of a shard and has its data from now on."""
        if self._only:
            return
        cursor = self.cursors[number]
        if cursor.home != node:
            if cursor.home is not None:
                del self._held[cursor.home][number]
            cursor.home = node
            self._held.setdefault(node, {})[number] = None
        self.note(number)

    def lose(self, node: NodeId) -> None:
        """Forget which shards a lost worker has."""
        for number in self._held.pop(node, ()):
            self.cursors[number].home = None
            self.note(number)

    def choose(self, node: NodeId, latest: float) -> int | None:
        """Return the number of the shard to lease from next, or None if no epoch up to `latest` has samples left."""
        if not self.has_work(latest):
            return None
        if self._only:
            return 0
        epoch = min(self._epochs)
        found = self._epochs[epoch]
        for home in (node, None):
            heap = found.by_home.get(home, [])
            while heap and self._placed[heap[0]] != (epoch, home):
                heappop(heap)
            if heap:
                return heap[0]
        heap = found.all
        while (placed := self._placed[heap[0]]) is None or placed[0] != epoch:
            heappop(heap)
        return heap[0]

    def has_work(self, latest: float) -> bool:
        """Return whether `choose` would find a shard."""
        if only := self._only:
            return only.next_epoch <= latest and only.first < only.last
        return min(self._epochs, default=inf) <= latest

    def with_work(self, latest: float) -> int:
        """Return the number of shards with samples of an epoch up to `latest`."""
        if self._only:
            return int(self.has_work(latest))
        total = 0
        for epoch, found in self._epochs.items():
            if epoch <= latest:
                total += found.count
        return total

    def _leave(self, epoch: int) -> None:
        """Record that a shard has no more work of an epoch, and remove the epoch if this was its last shard."""
        found = self._epochs[epoch]
        found.count -= 1
        if not found.count:
            del self._epochs[epoch]
