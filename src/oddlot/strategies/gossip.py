"""Gossip: peers average their models with each other at fixed intervals."""

from dataclasses import dataclass

from oddlot.core.events import Changed
from oddlot.core.strategy import View
from oddlot.core.support.errors import UsageError
from oddlot.core.support.validation import AtLeastOne
from oddlot.strategies.support.peer_averaging import Fraction, PeerAveraging


@dataclass
class Gossip(PeerAveraging):
    """Train on every peer, and average models with another peer every `period` steps, without a hub.

    With `probability`, each step is followed by an exchange at random instead.

    Papers: Jin, Yuan, Iandola, Keutzer, "How to scale distributed deep learning?" (2016), for pull and push; Blot et
    al., "Gossip training for deep learning" (2016), for push with sum weights; Ying et al., "Exponential Graph is
    Provably Efficient" (NeurIPS 2021), for topologies.
    """

    period: AtLeastOne = 1
    """Steps between two exchanges of a peer."""
    probability: Fraction | None = None
    """Probability of an exchange after a step, in place of `period`. None: `period` is used."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.probability is not None and self.period != 1:
            message = "period and probability exclude each other: set one of them"
            raise UsageError(message, "not_one_of", "probability", given=["period", "probability"])

    def is_due(self, view: View, changed: Changed | None) -> bool:
        """Return whether a period has ended; with `probability`, a random decision."""
        if self.probability is not None:
            return view.rng.random() < self.probability
        return self.steps % self.period == 0
