"""Codecs for updates, and the types for your own codec."""

from oddlot.wire.codec import Codec
from oddlot.wire.half import Half
from oddlot.wire.nonzero_blocks import NonZero
from oddlot.wire.packet import Bytes, Named, Packet, packet_of, tensors_of
from oddlot.wire.plain import Plain

__all__ = ["Bytes", "Codec", "Half", "Named", "NonZero", "Packet", "Plain", "packet_of", "tensors_of"]
