"""Packets with some tensors encoded by a codec and the others, such as buffers of a model, sent unchanged."""

from collections.abc import Sequence
from dataclasses import replace

from oddlot.wire.codec import Codec
from oddlot.wire.nonzero_blocks import NonZero
from oddlot.wire.packet import Named, Packet, damaged_packet

_NAME = "with_exact"
_EXACT = NonZero()


def encode(codec: Codec, tensors: Sequence[Named], exact: Sequence[Named]) -> Packet:
    """Return the packet of the encoded `tensors` and the unchanged `exact` tensors."""
    packet = codec.encode(tensors)
    if not exact:
        return packet
    unchanged = _EXACT.encode(exact)
    about = {
        "of": packet.codec,
        "about": packet.about,
        "exact": unchanged.about,
        "arrays": len(packet.arrays),
    }
    return Packet(_NAME, about, [*packet.arrays, *unchanged.arrays])


def decode(codec: Codec, packet: Packet) -> list[Named]:
    """Return the tensors of the codec, then the exact tensors. Raise FrameError for an invalid packet."""
    if packet.codec != _NAME:
        return codec.decode(packet)
    try:
        about, count = packet.about, int(packet.about["arrays"])
        inner = replace(
            packet, codec=str(about["of"]), about=dict(about["about"]), arrays=packet.arrays[:count]
        )
        unchanged = Packet("nonzero", dict(about["exact"]), packet.arrays[count:])
    except (KeyError, TypeError, ValueError) as error:
        raise damaged_packet(error) from None
    return [*codec.decode(inner), *_EXACT.decode(unchanged)]
