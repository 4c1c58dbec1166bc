"""Predictions of the next minibatches of a worker."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from oddlot.core.sample_spans import Span


class Lookahead:
    """Predicts the spans of a worker's next tasks from its last two tasks.

    It numbers the tasks of an epoch, and continues with the difference of the last two numbers. If all tasks have the
    same size and each worker gets one per round, the prediction is correct, also across epochs. With shards, it ends
    with the shard of the last task.

    `cuts` has the start of each shard in an epoch, and the end of the last shard.
    """

    def __init__(self, cuts: Sequence[int]) -> None:
        self.cuts, self.first, self.size = cuts, 0, cuts[-1]
        """Boundaries of the shards, and the start and size of the shard of the last task."""
        self.samples = 0
        """Positions of a complete task. 0: no task yet."""
        self.last: Span | None = None
        self.step = 1
        """Difference of the numbers of the last two tasks."""

    def note(self, spans: Sequence[Span]) -> None:
        """Record the spans of a new task. Tasks with several spans are ignored: their samples were returned before."""
        if len(spans) != 1:
            return
        shard = bisect_right(self.cuts, spans[0].start) - 1
        if self.cuts[shard] != self.first:
            self.last, self.samples, self.step = None, 0, 1
        self.first, self.size = self.cuts[shard], self.cuts[shard + 1] - self.cuts[shard]
        epoch, start, stop = spans[0]
        span = Span(epoch, start - self.first, stop - self.first)
        samples = span.stop - span.start
        if not self.samples or span.stop < self.size or samples > self.samples + 1:
            self.samples = samples
        if self.last is not None:
            step = self._number(span) - self._number(self.last)
            self.step = step if step > 0 else self.step
        self.last = span

    def next(self) -> Iterator[Span]:
        """Yield the spans of the next tasks, one span per task."""
        if self.last is None:
            return
        number, offset = self._number(self.last), self.last.start % self.samples
        while True:
            number += self.step
            epoch, place = divmod(number, self._tasks)
            start = place * self.samples + offset
            if start >= self.size or (len(self.cuts) > 2 and epoch != self.last.epoch):
                return
            stop = min(start + self.samples, self.size)
            alone = self.samples > 1 and self.size - stop == 1  # the ledger leaves no single sample
            yield Span(epoch, self.first + start, self.first + stop + alone)

    def _number(self, span: Span) -> int:
        return span.epoch * self._tasks + min(span.start // self.samples, self._tasks - 1)

    @property
    def _tasks(self) -> int:
        """Return the number of tasks of an epoch."""
        full, rest = divmod(self.size, self.samples)
        return max(1, full + (rest > 1 or (rest == 1 and self.samples == 1)))
