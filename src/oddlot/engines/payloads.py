"""Encoding and decoding of updates, and errors of user code."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from oddlot.core.support.errors import OddlotError
from oddlot.core.support.user_code import trace_of, user_code_failed
from oddlot.core.tasks import Kind
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.wire import exact_parts
from oddlot.wire.codec import Codec
from oddlot.wire.framing import FrameError
from oddlot.wire.packet import Packet
from oddlot.wire.plain import Plain


@contextmanager
def users_code(where: str) -> Iterator[None]:
    """Turn an exception of the job's code into a JobError with its traceback."""
    try:
        yield
    except OddlotError:
        raise
    except (Exception, SystemExit) as error:
        raise user_code_failed(where, trace_of(error)) from error


def most_bytes(codec: Codec, layout: Layout) -> int:
    """Return the maximum size of a packet, in bytes: the size for a block without zeros."""
    if isinstance(codec, Plain):
        return layout.bytes
    block = FlatBuffer(layout, torch.full((layout.bytes,), 0x3C, dtype=torch.uint8))  # 0x3C: no tiny floats
    return encoded(block, codec, "gradient", block).size


def encoded(block: FlatBuffer, codec: Codec, kind: Kind, start: FlatBuffer) -> Packet:
    """Return the packet of an update that started from `start`. Buffers are encoded exactly. `block` may be changed."""
    if kind == "weights" and codec.of_changes:
        block.toggle_(start)
    return exact_parts.encode(codec, block.without_buffers(), block.buffers())


def decode_into(block: FlatBuffer, codec: Codec, packet: Packet, kind: Kind, start: FlatBuffer) -> None:
    """Decode the packet of an update that started from `start` into `block`. Raise FrameError if it is invalid."""
    sections = [*block.without_buffers(), *block.buffers()]
    tensors = exact_parts.decode(codec, packet)
    if [(name, part.dtype, part.shape) for name, part in tensors] != [
        (n, t.dtype, t.shape) for n, t in sections
    ]:
        message = f"a packet of {packet.size} bytes does not match the sections of this model"
        raise FrameError(message, "other_sections", bytes=packet.size)
    for (_, target), (_, source) in zip(sections, tensors, strict=True):
        target.copy_(source)
    if kind == "weights" and codec.of_changes:
        block.toggle_(start)
