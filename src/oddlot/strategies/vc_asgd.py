"""VC-ASGD: the weights of whoever comes back are averaged into the model at once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from oddlot.core.commands import Assign, Blend, Command, Keep, Release
from oddlot.core.events import Arrived, Changed, Event
from oddlot.core.strategy import Strategy, Traits, View
from oddlot.core.tasks import Facts
from oddlot.core.validation import AboveZero, FromZeroBelowOne, NotNegative, check_settings


@dataclass
class VCASGD(Strategy):
    """A task is one local pass over a shard of the data; its weights are averaged into the model as they arrive,
    without waiting for anybody: W <- alpha W + (1 - alpha) W_c.

    `alpha` None is the paper's schedule, e / (e + 1) in epoch e = 1, 2, ...: large steps early, damping late. The share
    of a model that has seen only a part of its shard is smaller in proportion, and with `damping` that of one which is
    s versions late falls as (1 + s) ** -damping: otherwise the slowest, who arrive last, count most.

    By default there is a shard for each worker, or fewer of at least 10 minibatches each: shorter passes learn less in
    an epoch. `shards` sets their number (the paper has 50); a constant alpha means another thing for another number.

    Paper: Atre, Jha, Rao, "Distributed Deep Learning Using Volunteer Computing-Like Paradigm" (ScaDL 2021, arXiv
    2103.08894), the VC-ASGD rule and its schedule of alpha.
    """

    alpha: FromZeroBelowOne | None = None
    """what the model keeps of itself at an arrival; None: e / (e + 1)"""
    newest: bool = False
    """tasks start from the newest weights; otherwise from those of the epoch's beginning, which waits until the epoch
    before is wholly merged"""
    deadline_seconds: AboveZero | None = None
    """after which a shard is given to another worker; None: learnt from each worker's speed"""
    by_samples: bool = True
    """the share of a model that has seen fewer samples than the largest shard has is smaller in proportion"""
    damping: NotNegative = 0.0
    """the power with which an update's share falls with its staleness"""
    kept: list[int] = field(default_factory=list)
    """state: the version that this epoch's tasks start from, once there is one"""

    def __post_init__(self) -> None:
        check_settings(self)

    def traits(self, batch_size: int) -> Traits:
        """An epoch's snapshot is there once the one before is wholly merged."""
        return Traits(epoch_barrier=not self.newest, whole_shards=True, local_steps=True)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Average what arrives into the model, and keep everybody busy."""
        version = view.version
        match event:
            case Arrived(update):
                yield Blend({update.id: self._share(update, view)})
                version += 1
            case Changed() if self.kept:  # an epoch is closed
                yield Release(self.kept.pop())
        if view.work_left:
            yield from self._assign(view, version)

    def _share(self, update: Facts, view: View) -> float:
        """What the model takes of these weights."""
        epoch = view.epoch + 1
        alpha = epoch / (epoch + 1) if self.alpha is None else self.alpha
        part = update.samples / view.shard_samples if self.by_samples else 1.0
        return (1 - alpha) * part * float((1 + view.staleness(update)) ** -self.damping)

    def _assign(self, view: View, newest: int) -> Iterator[Command]:
        """A shard for every free slot."""
        if not self.newest and not self.kept and view.idle:
            self.kept.append(newest)
            yield Keep(newest)
        version = self.kept[0] if self.kept else None
        slots = (node for node in view.idle for _ in range(view.free(node)))
        for node in islice(slots, view.shards_left):
            yield Assign(node, view.shard_samples, "weights", version, deadline=self.deadline_seconds)
