"""Saved blocks of a model in the layout of other parameter groups."""

from collections.abc import Mapping
from math import prod
from typing import Any

from torch import Tensor

from oddlot.model.flat_buffer import FlatBuffer, Layout

BLOCKS = ("weights", "average", "kept", "inbox")
"""First words of the names of saved blocks."""


def regrouped(tensors: Mapping[str, Tensor], saved: Mapping[str, Any], layout: Layout) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint with all blocks in `layout`, instead of in the layout `saved`.

    Both have the same parameters and buffers. Updates lose their flags of missing gradients. The optimizers' state is
    not changed.
    """
    blocks: dict[str, dict[int, Tensor]] = {}
    found = dict(tensors)
    for name in tensors:
        block, _, section = name.rpartition("/")
        if block.split("/")[0] in BLOCKS and section.isdecimal():
            blocks.setdefault(block, {})[int(section)] = found.pop(name)
    for block, sections in blocks.items():
        flat = FlatBuffer.empty(layout)
        for entry in saved["entries"]:
            shape = tuple(entry["shape"])
            flat.view(entry["name"]).copy_(
                sections[entry["section"]][entry["offset"] :][: prod(shape)].view(shape)
            )
        found |= {f"{block}/{name}": tensor for name, tensor in flat.sections()}
    return found
