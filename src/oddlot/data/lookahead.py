"""Predictions of the next minibatches of a worker."""

from collections.abc import Iterator, Sequence

from oddlot.core.sample_spans import Span


class Lookahead:
    """Predicts the spans of a worker's next tasks from its last two tasks.

    It numbers the tasks of an epoch, and continues with the difference of the last two numbers. If all tasks have the
    same size and each worker gets one per round, the prediction is correct, also across epochs.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        """Positions of an epoch."""
        self.samples = 0
        """Positions of a complete task. 0: no task yet."""
        self.last: Span | None = None
        self.step = 1
        """Difference of the numbers of the last two tasks."""

    def note(self, spans: Sequence[Span]) -> None:
        """Record the spans of a new task. Tasks with several spans are ignored: their samples were returned before."""
        if len(spans) != 1:
            return
        (span,) = spans
        samples = span.stop - span.start
        if span.stop < self.size or samples > self.samples + 1:
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
            if start >= self.size:
                return
            stop = min(start + self.samples, self.size)
            alone = self.samples > 1 and self.size - stop == 1  # the ledger leaves no single sample
            yield Span(epoch, start, stop + alone)

    def _number(self, span: Span) -> int:
        return span.epoch * self._tasks + min(span.start // self.samples, self._tasks - 1)

    @property
    def _tasks(self) -> int:
        """Return the number of tasks of an epoch."""
        full, rest = divmod(self.size, self.samples)
        return max(1, full + (rest > 1 or (rest == 1 and self.samples == 1)))
