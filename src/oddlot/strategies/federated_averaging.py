"""Federated averaging: rounds of whole passes at home, then the mean of the weights."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from oddlot.core.commands import Assign, Blend, Command, Keep, Release
from oddlot.core.events import Arrived, Event
from oddlot.core.strategy import Strategy, Traits, View, shares_by_samples
from oddlot.core.tasks import UpdateId
from oddlot.core.validation import AboveZero, AtLeastOne, check_settings


@dataclass
class FederatedAveraging(Strategy):
    """In a round, each of `clients` shards of the data is passed over once at home, all from the same weights; the
    model becomes the mean of theirs, weighted by samples.

    By default there is a shard for each client of a round, or fewer of at least 10 minibatches each; `shards` sets
    their number. Everybody waits for the last one of a round; with more `clients` than workers, each takes several
    shards in turn.

    Paper: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS 2017),
    algorithm 1, with one local epoch.
    """

    clients: AtLeastOne | None = None
    """shards of a round; None: one for each worker"""
    deadline_seconds: AboveZero | None = None
    """after which a task is given to another worker; None: learnt from each worker's speed"""
    round: dict[UpdateId, int] = field(default_factory=dict)
    """state: the samples of every update of this round"""
    kept: list[int] = field(default_factory=list)
    """state: the version that this round's tasks start from, once there is one"""

    def __post_init__(self) -> None:
        check_settings(self)

    def traits(self, batch_size: int) -> Traits:
        """Return what must be known before a run."""
        return Traits(whole_shards=True, clients=self.clients or 0, local_steps=True)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect a round; close it when it has all, or nothing more is to come."""
        if isinstance(event, Arrived):
            self.round[event.update.id] = event.update.samples
        version = view.version
        if self.round and not view.tasks and (self._missing(view) <= 0 or not view.work_left):
            yield Blend(shares_by_samples(self.round))
            yield Release(self.kept.pop())
            self.round.clear()
            version += 1
        if view.work_left:
            yield from self._assign(view, version)

    def _assign(self, view: View, version: int) -> Iterator[Command]:
        """What the round still lacks, to those who are free."""
        if not self.kept and view.idle:
            self.kept.append(version)
            yield Keep(version)
        slots = [node for node in view.idle for _ in range(view.free(node))]
        for node in slots[: max(0, self._missing(view))]:
            yield Assign(node, view.shard_samples, "weights", self.kept[0], deadline=self.deadline_seconds)

    def _missing(self, view: View) -> int:
        """How many tasks this round still lacks."""
        return (self.clients or len(view.nodes)) - len(self.round) - len(view.tasks)
