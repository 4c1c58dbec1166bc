"""The tensors of a checkpoint of the store, by what they belong to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast, get_args

import torch
from torch import Tensor

from oddlot.core.support.errors import CheckpointError
from oddlot.core.tasks import Kind, UpdateId
from oddlot.model.flat_buffer import FlatBuffer

Sections = Mapping[str, Tensor]
"""Tensors by the name of their section in a block."""


@dataclass
class StoredTensors:
    """The parts of a checkpoint."""

    version: int
    optimizer_steps: Tensor
    weights: Sections
    optimizer: Sections
    average: dict[str, Tensor]
    """The moving average and its count. Empty without one."""
    kept: dict[int, Sections] = field(default_factory=dict)
    """Versions that were held."""
    inbox: dict[UpdateId, tuple[Kind, Sections]] = field(default_factory=dict)

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> "StoredTensors":
        """Return the parts of the tensors of `WeightStore.state_tensors`. Raise CheckpointError if some are unknown."""
        groups: dict[str, dict[str, Tensor]] = {}
        for name, tensor in state.items():
            of_optimizer = name.startswith("optimizer/")
            group, _, leaf = name.partition("/") if of_optimizer else name.rpartition("/")
            groups.setdefault(group, {})[leaf] = tensor
        counts = groups.pop("", {})
        if counts.keys() != {"version", "optimizer_steps"} or "weights" not in groups:
            message = f"the checkpoint has no weights or step counts: it has {sorted(state)}"
            raise CheckpointError(message, "missing_tensors", found=sorted(state))
        weights, optimizer, average = (groups.pop(one, {}) for one in ("weights", "optimizer", "average"))
        found = cls(int(counts["version"]), counts["optimizer_steps"], weights, optimizer, average)
        for group, sections in groups.items():
            found._add(group, sections)
        return found

    def _add(self, group: str, sections: Sections) -> None:
        word, _, rest = group.partition("/")
        if word == "kept" and rest.isdecimal():
            self.kept[int(rest)] = sections
        elif word == "inbox":
            kind, _, update = rest.partition("/")
            if kind not in get_args(Kind):
                message = f"the checkpoint has an update of kind {kind!r}, which this version does not know"
                raise CheckpointError(message, "unknown_kind", kind=kind)
            self.inbox[update] = cast(Kind, kind), sections
        else:
            message = f"the checkpoint has tensors under {group!r}, which this version does not know"
            raise CheckpointError(message, "unknown_tensors", group=group)


def optimizer_sections(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the optimizer state in saved tensors, without its prefix."""
    prefix = "optimizer/"
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def copy_sections(saved: Sections, block: FlatBuffer, what: str) -> None:
    """Copy saved tensors into a block. Raise CheckpointError if its sections differ."""
    expected = {name: (section.dtype, section.shape) for name, section in block.sections()}
    found = {name: (tensor.dtype, tensor.shape) for name, tensor in saved.items()}
    if found != expected:
        raise CheckpointError(
            f"the checkpoint's {what} has the sections {_text(found)}, but the model needs {_text(expected)}: "
            "it belongs to another model",
            "other_model",
            tensors=what,
        )
    for name, section in block.sections():
        section.copy_(saved[name])


def _text(sections: Mapping[str, tuple[torch.dtype, torch.Size]]) -> str:
    return ", ".join(f"{dtype} x {shape.numel()}" for dtype, shape in sections.values()) or "(none)"
