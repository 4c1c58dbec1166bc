"""Packing of models' tensors into packets between peers, and unpacking."""

from collections.abc import Callable

import torch

from oddlot.engines.mesh.messages import Tensors
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.wire import exact_parts
from oddlot.wire.codec import Codec
from oddlot.wire.framing import FrameError
from oddlot.wire.packet import Bytes, Named, Packet
from oddlot.wire.plain import Plain


def parts(weights: FlatBuffer, layers: tuple[int, ...] | None) -> list[Named]:
    """Return the named 1-D tensors that a codec encodes: all sections but buffers, or some trainable parameters."""
    if layers is None:
        return weights.without_buffers()
    entries = weights.layout.trainable_entries
    return [(entries[number].name, weights.view(entries[number].name).view(-1)) for number in layers]


def packed(tensors: Tensors, codec: Codec) -> Packet:
    """Return the packet of a model's tensors. All of its buffers are encoded exactly."""
    return exact_parts.encode(codec, parts(tensors.weights, tensors.layers), tensors.weights.buffers())


def room(block: FlatBuffer, layers: tuple[int, ...] | None, codec: Codec) -> list[Bytes]:
    """Return the memory of a block's tensors, for reading the arrays of a `Plain` packet. Other codecs: empty list."""
    if not isinstance(codec, Plain) or not _are_layers(block.layout, layers):
        return []
    return [tensor.view(torch.uint8).numpy() for _, tensor in parts(block, layers)]


def unpack(packet: Packet, codec: Codec, block: FlatBuffer, layers: tuple[int, ...] | None) -> None:
    """Write the tensors of a packet into a block, with its counters set to 0. Raise FrameError if they do not fit.

    Arrays that were read into the block are not copied. Counters of a merge are increments, and a peer counts only its
    own steps.
    """
    if not _are_layers(block.layout, layers):
        count = len(block.layout.trainable_entries)
        message = f"layers {(layers or ())[:5]} are not among the {count} parameters of this model"
        raise FrameError(message, "no_such_layer", layers=(layers or ())[:5], count=count)
    targets = [*parts(block, layers), *block.buffers()]
    sources = exact_parts.decode(codec, packet)
    if _shapes(sources) != _shapes(targets):
        message = f"a packet of {packet.size} bytes does not match the tensors of this model"
        raise FrameError(message, "other_sections", bytes=packet.size)
    for (_, target), (_, source) in zip(targets, sources, strict=True):
        if source.data_ptr() != target.data_ptr():
            target.copy_(source)
    for index in block.layout.of_role("counter"):
        block.section(index).zero_()


def _are_layers(layout: Layout, layers: tuple[int, ...] | None) -> bool:
    """Return whether these are numbers of trainable parameters in ascending order, or None."""
    numbers = range(len(layout.trainable_entries))
    return layers is None or (sorted({*layers}) == [*layers] and all(one in numbers for one in layers))


def travels_unchanged(layout: Layout, layers: tuple[int, ...] | None) -> bool:
    """Return whether a receiver could read the sender's block: a complete model without counters."""
    return layers is None and not layout.of_role("counter")


def copied(
    tensors: Tensors, codec: Codec, take: Callable[[], FlatBuffer], give: Callable[[FlatBuffer], None]
) -> tuple[int, Tensors]:
    """Pack tensors and release them. Return the packet's size in bytes, and the decoded tensors in another block."""
    packet = packed(tensors, codec)
    block = take()
    if tensors.layers is not None:
        block.memory.zero_()  # layers that are not sent
    unpack(packet, codec, block, tensors.layers)
    size = packet.size
    tensors.release()
    return size, Tensors(block, lambda: give(block), tensors.layers, tensors.optimizer)


def _shapes(tensors: list[Named]) -> list[tuple[str, object, object]]:
    return [(name, one.dtype, one.shape) for name, one in tensors]
