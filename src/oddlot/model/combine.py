"""The base classes of rules that combine updates and of gates that check them. Importing them loads no PyTorch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from oddlot.model.arrival import Arrival

LEAST_UPDATES = 3
"""Smallest number of updates in which a rule can tell one hostile update from the others.

Smaller merges change nothing.
"""


class Section(NamedTuple):
    """One section of the trainable parameters: the same numbers of every update, and memory for the result."""

    values: "Sequence[Tensor]"
    """The numbers of each update, as 1-D tensors of one floating dtype, length and device. Read only."""
    out: "Tensor"
    """Memory for the result, with the same dtype, length and device."""


class Combine(ABC):
    """Base class of rules that combine the updates of a merge into one.

    Your own rule implements `combine`, and may override `needs`. A rule has no state.
    """

    __slots__ = ()

    @property
    def needs(self) -> int:
        """Return the smallest number of updates with which the rule works. Runs with fewer workers are rejected."""
        return LEAST_UPDATES

    @abstractmethod
    def combine(self, sections: Sequence[Section]) -> Sequence[float]:
        """Write the result into `out` of each section. Return, for each update, the share of its values left out.

        1.0 means that the update was not used at all. There are at least `LEAST_UPDATES` updates, and possibly fewer
        than `needs`, as after the loss of workers. Their values are finite.
        """


class Gate(ABC):
    """Base class of gates. A gate decides which updates enter the inbox."""

    __slots__ = ()

    @abstractmethod
    def check(self, arrival: "Arrival") -> None:
        """Raise Rejection to reject the update."""
