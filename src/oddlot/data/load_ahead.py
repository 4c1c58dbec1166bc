"""Loading of the next minibatches while a worker computes."""

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Protocol

from oddlot.core.sum_tree import minibatch_size
from oddlot.core.support.errors import JobError
from oddlot.core.tasks import Task
from oddlot.data.lookahead import Lookahead
from oddlot.data.sample_order import Minibatch, SampleOrder, minibatches

AHEAD = 2
"""Minibatches per loading process that are loaded or waiting, as `prefetch_factor` of a DataLoader."""


class Loader(Protocol):
    """Loads the minibatches of tasks."""

    def plan(self, task: Task | None, batches: Sequence[Minibatch]) -> None:
        """Prepare to load the minibatches of a task, or of an evaluation."""

    def __call__(self, minibatch: Minibatch) -> Any:
        """Return one of the planned minibatches."""


class LoadingPool(Protocol):
    """Processes or threads that load minibatches."""

    depth: int
    """Number of minibatches to request ahead."""

    def request(self, number: int, minibatch: Minibatch) -> None:
        """Load a minibatch. `number` identifies the request."""

    def drop(self, numbers: Collection[int]) -> None:
        """Drop requests, whether they are loaded or not."""

    def result(self, number: int) -> Any:
        """Wait for a requested minibatch, and return it."""


class LoadAhead:
    """Requests the minibatches of a task, and the predicted minibatches of the next tasks, from a pool.

    A minibatch that was predicted wrongly is dropped.
    """

    def __init__(
        self,
        pool: LoadingPool,
        order: SampleOrder,
        cuts: Sequence[int],
        seed: int,
        batch_size: int,
        micro_batch_size: int | None = None,
    ) -> None:
        self.pool, self.order, self.seed, self.batch_size = pool, order, seed, batch_size
        self.size, self.micro_batch_size = batch_size, micro_batch_size
        self.lookahead = Lookahead(cuts)
        self.task: Task | None = None
        self.open: dict[Any, int] = {}
        """Numbers of the requests, by the keys of their minibatches."""
        self.requests, self.dropped = 0, 0
        """Number of requests, and of those that were dropped."""
        self.upcoming: Iterator[Minibatch] = iter(())
        self.seen = set[Any]()
        """Keys of the minibatches that were requested for the current task or the tasks after it."""

    def plan(self, task: Task | None, batches: Sequence[Minibatch]) -> None:
        """Request the first of these minibatches. Drop the requests that are not among the next minibatches."""
        self.task = task
        if task is not None:
            self.size = minibatch_size(task.kind, self.batch_size)
            batches = self._parts(batches)
            self.lookahead.note(task.spans)
        wanted = {one.key for one in islice(chain(batches, self._predicted()), self.pool.depth)}
        wrong = [key for key in self.open if key not in wanted]
        self.pool.drop([self.open.pop(key) for key in wrong])
        self.dropped += len(wrong)
        self.upcoming, self.seen = chain(batches, self._predicted()), set(self.open)
        self._fill()

    def __call__(self, minibatch: Minibatch) -> Any:
        """Return a minibatch, and request the next ones. Errors of the pool get the field `task`."""
        key = minibatch.key
        if key not in self.open:
            self._request(minibatch)
        number = self.open[key]
        try:
            batch = self.pool.result(number)
        except JobError as error:
            task = self.task.id if self.task else "evaluation"
            raise error.with_message(f"{task}: {error}", task=task) from error
        finally:
            del self.open[key]
        self._fill()
        return batch

    def _predicted(self) -> Iterator[Minibatch]:
        for span in self.lookahead.next():
            yield from self._parts(minibatches(self.order, self.seed, [span], self.size))

    def _parts(self, batches: Sequence[Minibatch]) -> list[Minibatch]:
        """Return the parts of minibatches that are loaded at once."""
        return [part for one in batches for part in one.parts(self.micro_batch_size)]

    def _fill(self) -> None:
        while len(self.open) < self.pool.depth:
            minibatch = next(self.upcoming, None)
            if minibatch is None:
                return
            if minibatch.key not in self.seen:
                self._request(minibatch)

    def _request(self, minibatch: Minibatch) -> None:
        self.requests += 1
        self.seen.add(minibatch.key)
        self.open[minibatch.key] = self.requests
        self.pool.request(self.requests, minibatch)
