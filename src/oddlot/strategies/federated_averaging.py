"""Federated averaging (FedAvg): rounds of local passes over complete shards, then the mean of the weights."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from oddlot.core.commands import Assign, Blend, Command, Keep, Release
from oddlot.core.events import Arrived, Event
from oddlot.core.strategy import Strategy, Traits, View, shares_by_weight
from oddlot.core.support.validation import AboveZero, AtLeastOne, check_settings
from oddlot.core.tasks import UpdateId


@dataclass
class FederatedAveraging(Strategy):
    """Average the weights of `clients` local passes per round, each over one shard (FedAvg).

    All passes of a round start from the same weights, and the model becomes their mean, weighted by samples, or by
    the weights that the loss returns. A round waits for all its clients. With more `clients` than workers, each worker
    takes several shards in turn.

    By default there is one shard per client, or fewer if shards would have fewer than 10 minibatches. The run setting
    `shards` sets their number.

    Paper: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS 2017),
    algorithm 1, with one local epoch.
    """

    clients: AtLeastOne | None = None
    """Shards per round. None: one per worker."""
    deadline_seconds: AboveZero | None = None
    """Task timeout, in seconds, after which the samples go to another worker. None: estimated from each worker's speed.
    """
    round: dict[UpdateId, int] = field(default_factory=dict)
    """State: weight of each update of this round."""
    kept: list[int] = field(default_factory=list)
    """State: the start version of this round's tasks. Empty if the round has not started."""

    def __post_init__(self) -> None:
        check_settings(self)

    def traits(self, batch_size: int) -> Traits:
        """Return the strategy's traits."""
        return Traits(shard_tasks=True, clients=self.clients or 0, local_steps=True)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect updates, and close the round when it is complete or no more updates can arrive."""
        if isinstance(event, Arrived):
            self.round[event.update.id] = event.update.weight_merged
        version = view.version
        if self.round and not view.tasks and (self._missing(view) <= 0 or not view.work_left):
            yield Blend(shares_by_weight(self.round))
            yield Release(self.kept.pop())
            self.round.clear()
            version += 1
        if view.work_left:
            yield from self._assign(view, version)

    def _assign(self, view: View, version: int) -> Iterator[Command]:
        """Assign the round's missing tasks to idle workers."""
        if not self.kept and view.idle:
            self.kept.append(version)
            yield Keep(version)
        slots = [node for node in view.idle for _ in range(view.free(node))]
        for node in slots[: max(0, self._missing(view))]:
            yield Assign(node, view.shard_samples, "weights", self.kept[0], deadline=self.deadline_seconds)

    def _missing(self, view: View) -> int:
        """Return the number of tasks that this round still needs."""
        return (self.clients or len(view.nodes)) - len(self.round) - len(view.tasks)
