"""The average of the models of all living peers, which is the model of a run on a mesh."""

from collections.abc import Iterable
from math import sqrt

from oddlot.core.peers import IncludedModel
from oddlot.core.records import HostState
from oddlot.core.tasks import NodeId
from oddlot.model import merging
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.model.update_gates import norm_of


class Averaging:
    """A running mean of models, which is complete when each peer has sent its own or was lost.

    The mean is computed as models arrive, in one block, and each peer counts alike. Counters and whole
    numbers are those of the first model.
    """

    def __init__(
        self, number: int, own: FlatBuffer, source: IncludedModel, others: Iterable[NodeId], now: float = 0.0
    ) -> None:
        self.number = number
        self.mean = FlatBuffer.empty(own.layout, own.memory.device)
        self.mean.copy_(own)
        self.sources = [source]
        """Peers whose models are in the mean."""
        self.missing = dict.fromkeys(others)
        self.host_states: dict[NodeId, HostState] = {}
        """States of the peers in the mean, if it is made for a checkpoint."""
        self.bytes = 0
        """Bytes of the models of the other peers on the network."""
        self.asked_at = now
        """Time at which the missing peers were asked last."""
        self._squares = 0.0
        """Sum of the squared distances of the models from their mean."""

    @property
    def peers(self) -> list[NodeId]:
        """Return the names of the peers whose models are in the mean."""
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
        """Add the model of a peer, which took `size` bytes. A second one of the same peer is ignored."""
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
        """Expect no model of a lost peer."""
        self.missing.pop(peer, None)
