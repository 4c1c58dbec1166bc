"""The base class of codecs. A codec encodes named 1-D tensors as bytes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oddlot.wire.packet import Named, Packet


class Codec(ABC):
    """Base class of codecs. A codec encodes tensors as packets at the sender and decodes them at the receiver.

    Your own codec implements `encode` and `decode`, and may override `of_changes`. State, such as residuals, stays
    with the sender.
    """

    __slots__ = ()

    @abstractmethod
    def encode(self, tensors: "Sequence[Named]") -> "Packet":
        """Return the packet of these 1-D tensors."""

    @abstractmethod
    def decode(self, packet: "Packet") -> "list[Named]":
        """Return the tensors on the CPU, with their names, dtypes and lengths at the sender.

        They may share memory with the packet. Decoding changes no state. Raise FrameError for another codec's packet.
        """

    @property
    def of_changes(self) -> bool:
        """Return whether weights are encoded as their bitwise difference from the version they started from."""
        return False
