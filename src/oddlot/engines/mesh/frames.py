"""Encoding of messages between peers as frames: JSON, then arrays of tensors. Nothing is unpickled.

The body of a frame is the length of the JSON text (u32), the text, and the arrays of all packets. The headers of the
packets are in the text. Arrays are sent from the memory of a model, and received into the memory of a block.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from oddlot.core.support.serialization import DAMAGED, from_plain, to_plain
from oddlot.core.tasks import NodeId
from oddlot.engines.mesh.messages import FromPeer, ModelMessage, PeerMessage, Tensors
from oddlot.engines.mesh.packing import packed, room, unpack
from oddlot.model.block_pool import BlockSource
from oddlot.wire.codec import Codec
from oddlot.wire.framing import HEADER_BYTES, FrameError, pack_header, read_header
from oddlot.wire.packet import Bytes, Packet
from oddlot.wire.plain import Plain

KIND = 1
_LENGTH_BYTES = 4
Fill = Callable[[memoryview], None]
"""Fills memory with the next bytes of a stream."""


def encode(message: PeerMessage, tensors: Tensors | None, codec: Codec) -> list[memoryview]:
    """Return the parts of the frame of a message. They may be views of the tensors.

    The codec encodes exchanged models. Other tensors are sent exactly.
    """
    exact: Codec = Plain()
    packets: list[Packet] = []
    if tensors is not None:
        packets.append(packed(tensors, codec if isinstance(message, ModelMessage) else exact))
        if tensors.optimizer is not None:
            packets.append(exact.encode([(name, one.reshape(-1)) for name, one in tensors.optimizer.items()]))
    heads = [[one.codec, one.about, [array.size for array in one.arrays]] for one in packets]
    text = json.dumps({"message": to_plain(message), "packets": heads}, separators=(",", ":")).encode()
    arrays = (array.data for packet in packets for array in packet.arrays)
    body = [memoryview(len(text).to_bytes(_LENGTH_BYTES, "little") + text), *arrays]
    return [memoryview(pack_header(KIND, body)), *body]


def decode(fill: Fill, sender: NodeId, codec: Codec, blocks: BlockSource, max_bytes: int) -> FromPeer:
    """Read the next message of a stream, with its model in one of the `blocks`. Raise FrameError if it is invalid.

    If only its tensors are invalid, the message has a `problem` instead of tensors.
    """
    body = _Body(fill, max_bytes)
    message, heads = body.head()
    if not heads:
        body.end()
        return FromPeer(sender, message, body.bytes)
    layers = message.model.layers if isinstance(message, ModelMessage) else None
    codec = codec if isinstance(message, ModelMessage) else Plain()
    block = blocks.take()
    release = partial(blocks.give, block)
    try:
        if layers is not None:
            block.memory.zero_()  # layers that are not sent
        model = body.packet(heads[0], room(block, layers, codec))
        others = [body.packet(head, []) for head in heads[1:]]
        body.end()
        unpack(model, codec, block, layers)
        optimizer = dict(Plain().decode(others[0])) if others else None
    except FrameError as error:
        release()
        if not body.is_complete:
            raise
        return FromPeer(sender, message, body.bytes, problem=str(error))
    except BaseException:
        release()
        raise
    return FromPeer(sender, message, body.bytes, Tensors(block, release, layers, optimizer))


class _Head(NamedTuple):
    """The header of a packet."""

    codec: str
    about: dict[str, Any]
    sizes: list[int]


class _Body:
    """The body of the next frame. It is read part by part."""

    def __init__(self, fill: Fill, max_bytes: int) -> None:
        start = bytearray(HEADER_BYTES)
        fill(memoryview(start))
        self.fill, self.header, self.checksum = fill, read_header(bytes(start)), 0
        self.left = length = self.header.length
        self.bytes = HEADER_BYTES + length
        self.is_complete = False
        if (kind := self.header.kind) != KIND:
            raise FrameError(f"a frame of kind {kind} is not a message of a peer", "not_a_message", kind=kind)
        if length > max_bytes:
            message = f"a message of {length:,} bytes is longer than {max_bytes:,}"
            raise FrameError(message, "message_too_long", bytes=length, most=max_bytes)

    def head(self) -> tuple[PeerMessage, list[_Head]]:
        """Return the message, and the headers of its packets."""
        try:
            length = int.from_bytes(self._read(_LENGTH_BYTES), "little")
            head = json.loads(self._read(length))
            message: PeerMessage = from_plain(PeerMessage, head["message"])
            heads = [_Head(str(codec), dict(about), list(sizes)) for codec, about, sizes in head["packets"]]
            sizes = [size for one in heads for size in one.sizes]
            if len(heads) > 2 or not all(type(size) is int and size >= 0 for size in sizes):
                raise ValueError(f"{len(heads)} packets with arrays of {sizes[:5]} bytes")
            if sum(sizes) != self.left:
                raise ValueError(f"arrays of {sum(sizes)} bytes, but {self.left} follow")
        except DAMAGED as error:
            text = f"a frame is not a message of a peer: {error!r}"
            raise FrameError(text, "not_a_message", reason=repr(error)) from None
        return message, heads

    def packet(self, head: _Head, places: list[Bytes]) -> Packet:
        """Return a packet. Each array is read into the item of `places` at its index, if that has the array's size."""
        arrays: list[Bytes] = []
        for number, size in enumerate(head.sizes):
            fits = number < len(places) and places[number].size == size
            arrays.append(places[number] if fits else np.empty(size, np.uint8))
            self._fill(arrays[-1].data)
        return Packet(head.codec, head.about, arrays)

    def end(self) -> None:
        """End the body. Raise FrameError if it was damaged."""
        self.header.check(self.checksum)
        self.is_complete = True

    def _read(self, size: int) -> bytearray:
        if size > self.left:
            raise ValueError(f"{size} bytes, but {self.left} follow")
        self._fill(memoryview(text := bytearray(size)))
        return text

    def _fill(self, memory: memoryview) -> None:
        self.fill(memory)
        self.left -= memory.nbytes
        self.checksum = crc32(memory, self.checksum)
