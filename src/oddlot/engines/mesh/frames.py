"""Messages between the processes of peers as frames of bytes: JSON, and packets of tensors. Nothing is unpickled."""

import json
from typing import Any

import numpy as np
from torch import Tensor

from oddlot.core.serialization import DAMAGED, from_plain, to_plain
from oddlot.core.tasks import NodeId
from oddlot.engines.mesh.messages import (
    FromPeer,
    ModelMessage,
    PeerMessage,
    Tensors,
)
from oddlot.engines.mesh.packing import packed, unpack
from oddlot.train.flat_buffer import FlatBuffer, Layout
from oddlot.wire.codec import Codec
from oddlot.wire.framing import FrameError, pack
from oddlot.wire.framing import unpack as unpack_frame
from oddlot.wire.packet import Packet
from oddlot.wire.plain import Plain

KIND = 1
_LENGTH_BYTES = 4


def encode(message: PeerMessage, tensors: Tensors | None, codec: Codec) -> bytes:
    """Return the frame of a message. An exchanged model is encoded by the codec, a whole state exactly."""
    exact: Codec = Plain()
    packets: list[Packet] = []
    head: dict[str, Any] = {"message": to_plain(message)}
    if tensors is not None:
        packets.append(packed(tensors, codec if isinstance(message, ModelMessage) else exact))
        if tensors.optimizer is not None:
            named = [(name, one.reshape(-1)) for name, one in tensors.optimizer.items()]
            packets.append(exact.encode(named))
    sizes = [packet.size for packet in packets]
    text = json.dumps(head | {"packets": sizes}, separators=(",", ":")).encode()
    body = np.zeros(_LENGTH_BYTES + len(text) + sum(sizes), np.uint8)
    body[:_LENGTH_BYTES] = np.frombuffer(len(text).to_bytes(_LENGTH_BYTES, "little"), np.uint8)
    at = _LENGTH_BYTES + len(text)
    body[_LENGTH_BYTES:at] = np.frombuffer(text, np.uint8)
    for packet, size in zip(packets, sizes, strict=True):
        packet.write(body[at : at + size])
        at += size
    return pack(KIND, body.tobytes())


def decode(frame: bytes, sender: NodeId, layout: Layout, codec: Codec) -> FromPeer:
    """Return the message in a frame. Raise FrameError if it is not one.

    If its tensors cannot be read, the message has a `problem`, which its receiver counts.
    """
    kind, body = unpack_frame(frame)
    if kind != KIND:
        raise FrameError(f"a frame of kind {kind} is not a message of a peer", "not_a_message", kind=kind)
    try:
        length = int.from_bytes(body[:_LENGTH_BYTES], "little")
        at = _LENGTH_BYTES + length
        head = json.loads(body[_LENGTH_BYTES:at])
        message: PeerMessage = from_plain(PeerMessage, head["message"])
        layers = message.model.layers if isinstance(message, ModelMessage) else None
        sizes = [int(size) for size in head["packets"]]
    except DAMAGED as error:
        told = f"a frame is not a message of a peer: {error!r}"
        raise FrameError(told, "not_a_message", reason=repr(error)) from None
    if not sizes:
        return FromPeer(sender, message, len(frame))
    memory = np.frombuffer(body, np.uint8)
    try:
        exchange = codec if isinstance(message, ModelMessage) else Plain()
        block = FlatBuffer.empty(layout)
        unpack(Packet.read(memory[at : at + sizes[0]]), exchange, block, layers)
        optimizer = _optimizer(memory[at + sizes[0] :]) if len(sizes) > 1 else None
    except FrameError as error:
        return FromPeer(sender, message, len(frame), problem=str(error))
    return FromPeer(sender, message, len(frame), Tensors(block, lambda: None, layers, optimizer))


def _optimizer(memory: Any) -> dict[str, Tensor]:
    return {name: one.clone() for name, one in Plain().decode(Packet.read(memory))}
