"""The codec that sends tensors as they are."""

from collections.abc import Sequence
from dataclasses import dataclass

from oddlot.wire.codec import Codec
from oddlot.wire.packet import Named, Packet, packet_of, tensors_of


@dataclass(frozen=True, slots=True)
class Plain(Codec):
    """The tensors' own bytes; nothing is lost, and on a CPU nothing is copied."""

    def encode(self, tensors: Sequence[Named]) -> Packet:
        return packet_of("plain", tensors, tensors)

    def decode(self, packet: Packet) -> list[Named]:
        return [(name, tensor) for name, _, tensor in tensors_of("plain", packet)]
