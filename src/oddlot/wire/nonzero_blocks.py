"""The codec that leaves out blocks of zeros."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from oddlot.core.support.errors import InvalidValue
from oddlot.wire.codec import Codec
from oddlot.wire.half import Half
from oddlot.wire.packet import Bytes, Named, Packet, check_packet, damaged_packet
from oddlot.wire.plain import Plain

BLOCK_BYTES = 64
"""Block size: one cache line. Rows of 16 n float32 numbers start at a block."""
WHOLE, PARTLY = 0, 1


@dataclass(frozen=True, slots=True)
class NonZero(Codec):
    """Send only the blocks of 64 bytes that are not all zero, and a bitmap of them.

    Use it for models with few changed rows per task, such as embeddings and sampled output layers. The complete array
    is sent if that is smaller. The receiver gets the packet of the codec `of`, bit for bit.

    With `Plain`, weights are sent as their bitwise difference from the version that they started from, so unchanged
    rows are zeros. With `Half`, they are not, because it would round the difference.
    """

    of: Codec = Plain()  # noqa: RUF009 - frozen, and without state
    """Codec that makes the packets to compress: `Plain()` or `Half()`."""

    def __post_init__(self) -> None:
        if not isinstance(self.of, Plain | Half):
            raise InvalidValue("of", self.of, "Plain() or Half()", of="NonZero")

    @property
    def of_changes(self) -> bool:
        """Return whether `of` is `Plain`. Its bitwise differences of weights have zeros."""
        return isinstance(self.of, Plain)

    def encode(self, tensors: Sequence[Named]) -> Packet:
        """Return the packet of the codec `of`, without blocks of zeros."""
        packet = self.of.encode(tensors)
        hows, arrays = list[int](), list[Bytes]()
        for array in packet.arrays:
            parts = _parts(array)
            partly = sum(part.size for part in parts) < array.size
            hows.append(PARTLY if partly else WHOLE)
            arrays += parts if partly else [array, array[:0]]
        about = {"of": packet.codec, "about": packet.about, "hows": hows}
        return Packet("nonzero", about | {"sizes": [array.size for array in packet.arrays]}, arrays)

    def decode(self, packet: Packet) -> list[Named]:
        """Fill in the blocks of zeros, and return what the codec `of` decodes."""
        check_packet(packet, "nonzero")
        try:
            about, arrays = packet.about, list[Bytes]()
            each = zip(about["hows"], about["sizes"], packet.arrays[::2], packet.arrays[1::2], strict=True)
            for how, size, first, second in each:
                arrays.append(first if how == WHOLE else _whole(int(size), first, second))
            inner = replace(packet, codec=str(about["of"]), about=dict(about["about"]), arrays=arrays)
        except (KeyError, TypeError, ValueError, OverflowError) as error:  # JSON can contain Infinity
            raise damaged_packet(error) from None
        return self.of.decode(inner)


def _parts(array: Bytes) -> list[Bytes]:
    """Return a bit for each complete block, and the nonzero blocks followed by the rest after the last complete
    block."""
    count = array.size // BLOCK_BYTES
    blocks = array[: count * BLOCK_BYTES].reshape(count, BLOCK_BYTES)
    # The eight words of a block give eight booleans, viewed as one word.
    words = torch.from_numpy(np.ascontiguousarray(blocks)).view(torch.int64)
    there = words.ne(0).view(torch.int64).ne(0).numpy().reshape(count)
    rest = np.concatenate([blocks[there].reshape(-1), array[count * BLOCK_BYTES :]])
    return [np.packbits(there), rest]


def _whole(size: int, bits: Bytes, rest: Bytes) -> Bytes:
    """Return the array of these parts. Raise ValueError if they do not fit an array of that size."""
    count = size // BLOCK_BYTES
    if size < 0 or bits.size != -(-count // 8):
        raise ValueError(f"{bits.size} bytes of bits for {size} bytes")
    there = np.unpackbits(bits, count=count).astype(bool)
    kept = int(there.sum()) * BLOCK_BYTES
    if rest.size != kept + size % BLOCK_BYTES:
        raise ValueError(f"{rest.size} bytes for {there.sum()} blocks of {size} bytes")
    out = np.zeros(size, np.uint8)
    out[: count * BLOCK_BYTES].reshape(count, BLOCK_BYTES)[there] = rest[:kept].reshape(-1, BLOCK_BYTES)
    out[count * BLOCK_BYTES :] = rest[kept:]
    return out
