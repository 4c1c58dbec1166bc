"""The average of the models of all running peers. It is the model of a run on a mesh."""

from collections.abc import Iterable
from math import sqrt

from oddlot.core.peers import IncludedModel
from oddlot.core.records import HostState
from oddlot.core.tasks import NodeId
from oddlot.model import merging
from oddlot.model.arrival import norm_of
from oddlot.model.flat_buffer import FlatBuffer


class Averaging:
    """A running mean of models. It is complete when each peer has sent its model or was lost.

    The mean is updated as models arrive, in one block, and all models have equal weight. Counters and integers are not
    averaged: the values of the first model remain.
    """

    def __init__(
        self, number: int, own: FlatBuffer, source: IncludedModel, others: Iterable[NodeId], now: float = 0.0
    ) -> None:
        self.number = number
        self.mean = FlatBuffer.empty(own.layout, own.memory.device)
        self.mean.copy_(own)
        self.sources = [source]
        """Models in the mean."""
        self.missing = dict.fromkeys(others)
        self.host_states: dict[NodeId, HostState] = {}
        """States of the peers in the mean, if it is made for a checkpoint."""
        self.bytes = 0
        """Bytes of the models of the other peers on the network."""
        self.asked_at = now
        """Time of the last request to the missing peers."""
        self._squares = 0.0
        """Sum of the squared distances of the models from their mean."""

    @property
    def peers(self) -> list[NodeId]:
        """Return the names of the peers with a model in the mean."""
        return [source.peer for source in self.sources]

    @property
    def is_complete(self) -> bool:
        """Whether no model is missing."""
        return not self.missing

    @property
    def disagreement(self) -> float:
        """Return the root mean square distance of the models from the mean, relative to the norm of the mean."""
        norm = norm_of(self.mean)
        return sqrt(self._squares / len(self.sources)) / norm if norm else 0.0

    def add(
        self, source: IncludedModel, weights: FlatBuffer, size: int = 0, host_state: HostState | None = None
    ) -> None:
        """Add the model of a peer. Its message had `size` bytes. Ignore a second model of the same peer."""
        if source.peer not in self.missing:
            return
        del self.missing[source.peer]
        self.sources.append(source)
        self.bytes += size
        if host_state is not None:
            self.host_states[source.peer] = host_state
        share = 1.0 / len(self.sources)
        self._squares += (1.0 - share) * norm_of(weights, self.mean) ** 2  # Welford's update of a variance
        merging.blend(self.mean, [(weights, share)], self.mean, own_whole=True)

    def lose(self, peer: NodeId) -> None:
        """Stop waiting for the model of a lost peer."""
        self.missing.pop(peer, None)
