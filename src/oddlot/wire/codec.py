"""What a codec is: it turns tensors into bytes and back, and sees named 1-D tensors and nothing else."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oddlot.wire.packet import Named, Packet


class Codec(ABC):
    """Turns tensors into packets at the sender and back at the receiver. Subclass it for a codec of your own.

    `encode` and `decode` are all that it needs; override `of_changes` if the default does not fit. What a codec
    remembers, such as residuals, stays with the sender.
    """

    __slots__ = ()

    @abstractmethod
    def encode(self, tensors: "Sequence[Named]") -> "Packet":
        """Return the packet of these 1-D tensors."""

    @abstractmethod
    def decode(self, packet: "Packet") -> "list[Named]":
        """Return the tensors, with their first names, dtypes and lengths, on the CPU.

        Their memory may be the packet's. Nothing is remembered. FrameError: not a packet of this codec.
        """

    @property
    def of_changes(self) -> bool:
        """Whether weights are given, and returned, as the bits that differ from the version they began from."""
        return False
