"""Synchronous data parallelism, as a baseline that tolerates lost workers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from oddlot.core.commands import Assign, Command, HandOver, Step
from oddlot.core.events import Arrived, Event, Joined
from oddlot.core.sample_spans import Span, samples_in
from oddlot.core.strategy import Strategy, Traits, View, assign_all, assign_idle, shares_by_weight
from oddlot.core.support.validation import AtLeastOne, check_settings
from oddlot.core.tasks import UpdateId
from oddlot.strategies.support.exact_rounds import free_parts, task_sizes


@dataclass
class Synchronous(Strategy):
    """Wait for every worker, then apply the mean gradient.

    Gradients are weighted by their samples, or by the weights that the loss returns, so the step is that of one large
    batch. A round closes when no task is open: it does not wait for workers that are lost or whose task timed out.

    With `exact`, the bits of the model depend on neither the number of workers nor their speed and losses, on one type
    of processor. A round has `samples` samples, in chunks of 128. Gradients of chunks are added in a fixed binary tree.
    Workers add complete subtrees and send one sum for each task; samples of lost tasks are computed again. Each worker
    has one thread. Models with buffers that training changes, such as BatchNorm, are rejected.

    Paper: Chen et al., "Revisiting Distributed Synchronous SGD" (2016), section 3 without backup workers. For `exact`:
    Dean and Ghemawat, "MapReduce: Simplified Data Processing on Large Clusters" (OSDI 2004), with a combiner (section
    4.3) whose order of additions is fixed.
    """

    samples: AtLeastOne | None = None
    """Samples per task or, with `exact`, per round of all workers. None: the job's batch size."""
    exact: bool = False
    """Whether the bits of the model do not depend on the workers."""
    round: dict[UpdateId, int] = field(default_factory=dict)
    """State: weight of each update of this round."""

    def __post_init__(self) -> None:
        check_settings(self)

    def traits(self, batch_size: int) -> Traits:
        """Return the strategy's traits."""
        samples = self.samples or batch_size
        return Traits(
            waits_for_all=True,
            exact=self.exact,
            task_samples=samples,
            task_setting="samples",
            step_samples=samples if self.exact else None,
        )

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect updates, and close the round when no task is open."""
        samples = self.samples or view.batch
        if isinstance(event, Arrived):
            self.round[event.update.id] = event.update.weight_merged
        if self.exact:
            yield from self._exact(event, samples, view)
        elif not self.round:
            yield from assign_idle(view, samples)
        elif not view.tasks:
            yield Step(shares_by_weight(self.round))
            self.round.clear()
            yield from assign_all(view, samples)

    def _exact(self, event: Event, samples: int, view: View) -> Iterator[Command]:
        """Assign what is free of the round, or close it.

        If a worker joins and nothing is free, the largest task ends early, and its rest is divided.
        """
        round_ = _round_at(view.samples, samples, view.shard_samples)
        free = free_parts(view.free_spans, round_)
        if self.round and not free and not view.tasks:
            yield Step(dict.fromkeys(self.round, 1 / (sum(self.round.values()) or 1)))
            self.round.clear()
            merged = view.samples + round_.stop - round_.start
            round_ = _round_at(merged, samples, view.shard_samples)
            free = free_parts(view.free_spans, round_)
        yield from _assign(free, round_, view)
        if isinstance(event, Joined) and not free and view.tasks:
            largest = max(view.tasks.values(), key=lambda task: samples_in(task.spans))
            yield HandOver(largest.id)


def _round_at(merged: int, samples: int, epoch_samples: int) -> Span:
    """Return the round after this number of merged samples. The last round of an epoch may be smaller, or larger by
    one."""
    epoch, start = divmod(merged, epoch_samples)
    stop = start + samples
    return Span(epoch, start, epoch_samples if stop >= epoch_samples - 1 else stop)


def _assign(free: Sequence[Span], round_: Span, view: View) -> Iterator[Command]:
    """Yield a task of the round for every free slot."""
    slots = [node for node in view.idle for _ in range(view.free(node))]
    sizes = task_sizes(free, round_, len(view.nodes)) if slots else ()
    for node, samples in zip(slots, sizes, strict=False):
        yield Assign(node, samples, "sum")
