"""The buffers of a model, bound to the memory of a block."""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from oddlot.core.support.errors import JobError
from oddlot.model.flat_buffer import FlatBuffer


class BoundBuffers:
    """The buffers of a model, and the parameters that are merged like buffers, as views of the block `weights`.

    `trains` are the names of the other parameters.
    """

    def __init__(self, model: nn.Module, weights: FlatBuffer, trains: Collection[str]) -> None:
        self._views = {name: view for name, view in weights.views() if name not in trains}
        by_place = {view.data_ptr(): view for view in self._views.values()}
        self._bound: list[tuple[dict[str, Any], str, Tensor]] = []
        """Owner, name and view of each."""
        for owner in model.modules():
            for holder in (owner._buffers, owner._parameters):
                for leaf, tensor in holder.items():
                    if tensor is not None and tensor.data_ptr() in by_place:
                        self._bound.append((holder, leaf, by_place[tensor.data_ptr()]))

    def follow(self) -> None:
        """Copy buffers that were replaced, as by `self.mean = ...`, into the block, and bind them again."""
        for holder, leaf, view in self._bound:
            now = dict(holder.items()).get(leaf)  # TorchScript has its own kind of dict
            if now is not None and now.data_ptr() == view.data_ptr() and now.shape == view.shape:
                continue
            alike = now is not None and now.is_floating_point() == view.is_floating_point()
            if now is None or now.shape != view.shape or not alike:
                before, after = _text(view), _text(now)
                message = f"buffer {leaf} changed from {before} to {after}: keep its shape and dtype"
                raise JobError(message, "buffer_reshaped", buffer=leaf, before=before, after=after)
            view.copy_(now.detach())
            if isinstance(now, nn.Parameter):
                now.data = view
            else:
                holder[leaf] = view.data

    def check_unchanged(self, weights: FlatBuffer) -> None:
        """Raise JobError if a buffer differs from `weights`: in an exact round, training must not change it."""
        for name, view in self._views.items():
            if not same_bits(view, weights.view(name).to(view.device)):
                raise JobError(
                    f"training changes the buffer {name}, so its value depends on which worker computes which samples: "
                    "use layers without running statistics, such as LayerNorm and GroupNorm, or leave out exact=True",
                    "buffer_in_exact_round",
                    buffer=name,
                )


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of the same shape and dtype have the same bits."""
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def _text(tensor: Tensor | None) -> str:
    return "None" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
