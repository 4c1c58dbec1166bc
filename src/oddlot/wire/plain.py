"""The codec that sends tensors unchanged."""

from collections.abc import Sequence
from dataclasses import dataclass

from oddlot.wire.codec import Codec
from oddlot.wire.packet import Named, Packet, packet_of, tensors_of


@dataclass(frozen=True, slots=True)
class Plain(Codec):
    """Send tensors unchanged. On a CPU, encoding copies nothing."""

    def encode(self, tensors: Sequence[Named]) -> Packet:
        """Return the packet of the unchanged tensors."""
        return packet_of("plain", tensors, tensors)

    def decode(self, packet: Packet) -> list[Named]:
        """Return the tensors. They share memory with the packet."""
        return [(name, tensor) for name, _, tensor in tensors_of("plain", packet)]
