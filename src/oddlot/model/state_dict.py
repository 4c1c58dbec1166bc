"""The state dict of a model with its trained tensors in a block."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from oddlot.model.flat_buffer import FlatBuffer, Layout

TIED, MISSING, EXTRA = "tied", "missing", "extra"


class StateDict:
    """Makes state dicts of a module with tensors from a block of this layout.

    Tied tensors have an entry for each of their names, as in `module.state_dict()`. Extra state that is not a tensor is
    omitted.
    """

    def __init__(self, layout: Layout, module: nn.Module) -> None:
        known: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
        known |= dict(module.named_buffers(remove_duplicate=False))
        self.layout = layout
        owner = {id(known[name]): name for name in layout.places if name in known}
        self.source: dict[str, str] = {}
        """Name in the layout of each entry that is in the block."""
        self.constants: dict[str, Tensor] = {}
        """Entries that are not in the block, such as frozen parameters."""
        for name, tensor in module.state_dict(keep_vars=True).items():
            if not isinstance(tensor, Tensor):
                continue
            if id(tensor) in owner:
                self.source[name] = owner[id(tensor)]
            else:
                self.constants[name] = tensor.detach()

    @property
    def differences(self) -> dict[str, Any]:
        """Return the differences between the state dict and the tensors of the layout, for run.json.

        `TIED`: entries with the tensor of another name. `MISSING`: entries that are not in the layout. `EXTRA`: tensors
        that are only in the layout.
        """
        tied = {name: own for name, own in self.source.items() if own != name}
        extra = [name for name in self.layout.places if name not in self.source]
        return {TIED: tied, MISSING: list(self.constants), EXTRA: extra}

    def of(self, weights: FlatBuffer) -> dict[str, Tensor]:
        """Return the state dict with views of a block."""
        return {name: weights.view(own) for name, own in self.source.items()} | self.constants


def copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies on the CPU. Entries that share memory, as tied tensors do, share their copy."""
    copies: dict[tuple[int, torch.Size], Tensor] = {}
    for tensor in state.values():
        if (key := (tensor.data_ptr(), tensor.shape)) not in copies:
            copies[key] = tensor.detach().to("cpu", copy=True)
    return {name: copies[tensor.data_ptr(), tensor.shape] for name, tensor in state.items()}
