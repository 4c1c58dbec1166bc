"""VC-ASGD: each worker's weights are averaged into the model as they arrive."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from oddlot.core.commands import Assign, Blend, Command, Keep, Release
from oddlot.core.events import Arrived, Changed, Event
from oddlot.core.strategy import Strategy, Traits, View
from oddlot.core.support.validation import AboveZero, FromZeroBelowOne, NotNegative, check_settings
from oddlot.core.tasks import Facts


@dataclass
class VCASGD(Strategy):
    """Average each worker's weights into the model as they arrive, after one local pass over a shard of the data.

    For the worker's weights W_c, W <- alpha W + (1 - alpha) W_c. By default, tasks start from the newest weights,
    epochs overlap, and no worker waits for another.

    `newest=False` is the paper's mode: all tasks of an epoch start from the weights at the beginning of the epoch, and
    workers wait for the last task of each epoch. Use it to reproduce the paper. In the benchmark on spot machines, it
    needed 12 epochs for the accuracy that the default reached in 2.5, and cost more than federated averaging on demand.
    With one shard per worker and workers of equal speed, both modes take the same time, and their accuracies differ by
    about one point.

    Late updates pull the model back to the older weights from which they started. With `newest=False`, they also arrive
    last in their epoch and have the largest weight. `damping` reduces both: it scales 1 - alpha by
    (1 + s) ** -damping for an update of staleness s.

    By default there is one shard per worker, or fewer if shards would have fewer than 10 minibatches: shorter passes
    learn less in an epoch. The run setting `shards` sets their number (50 in the paper). If you set `alpha`, choose it
    for this number: with S shards, the model keeps alpha ** S of its weights in an epoch.

    Paper: Atre, Jha, Rao, "Distributed Deep Learning Using Volunteer Computing-Like Paradigm" (ScaDL 2021, arXiv
    2103.08894), the VC-ASGD rule and its schedule of alpha.
    """

    alpha: FromZeroBelowOne | None = None
    """Weight of the current model when an update is merged. None: e / (e + 1), as in the paper, where e = 1, 2, ... is
    the oldest epoch that is not completely merged."""
    newest: bool = True
    """Whether tasks start from the newest weights. False, the paper's mode: from the weights at the beginning of the
    epoch, which begins when the previous epoch is merged."""
    deadline_seconds: AboveZero | None = None
    """Task timeout, in seconds, after which the shard goes to another worker. None: estimated from each worker's speed.
    """
    by_samples: bool = True
    """Whether 1 - alpha is multiplied by (samples of the update) / (samples of the largest shard). False: updates of
    small shards count as much as those of large ones."""
    damping: NotNegative = 0.0
    """Exponent of the staleness damping: an update of staleness s is scaled by (1 + s) ** -damping."""
    kept: list[int] = field(default_factory=list)
    """State: the start version of this epoch's tasks. Empty if the epoch has not started."""

    def __post_init__(self) -> None:
        check_settings(self)

    def traits(self, batch_size: int) -> Traits:
        """Return the strategy's traits. Without `newest`, an epoch starts when the previous epoch is merged."""
        return Traits(epoch_barrier=not self.newest, shard_tasks=True, local_steps=True, single_updates=True)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Average the update into the model and assign tasks to idle workers."""
        version = view.version
        match event:
            case Arrived(update):
                yield Blend({update.id: self._share(update, view)})
                version += 1
            case Changed() if self.kept:  # an epoch is complete
                yield Release(self.kept.pop())
        if view.work_left:
            yield from self._assign(view, version)

    def _share(self, update: Facts, view: View) -> float:
        """Return the weight of these weights in the new model."""
        epoch = view.epoch + 1
        alpha = epoch / (epoch + 1) if self.alpha is None else self.alpha
        part = update.samples / view.shard_samples if self.by_samples else 1.0
        return (1 - alpha) * part * float((1 + view.staleness(update)) ** -self.damping)

    def _assign(self, view: View, newest: int) -> Iterator[Command]:
        """Assign a shard to every free slot."""
        if not self.newest and not self.kept and view.idle:
            self.kept.append(newest)
            yield Keep(newest)
        version = self.kept[0] if self.kept else None
        slots = (node for node in view.idle for _ in range(view.free(node)))
        for node in islice(slots, view.shards_left):
            yield Assign(node, view.shard_samples, "weights", version, deadline=self.deadline_seconds)
