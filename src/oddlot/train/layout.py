"""Where each number of a model lies: trainable parameters and persistent buffers in one block of bytes."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from oddlot.core.errors import UsageError

LINE_BYTES = 64
"""Every section and entry starts on a cache line, as PyTorch's own tensors do: views compute as fast."""

Role = Literal["trainable", "buffer"]


@dataclass(frozen=True, slots=True)
class Section:
    """A contiguous run of numbers of one role and dtype; `start` in bytes, `numbers` with the padding."""

    role: Role
    dtype: str
    start: int
    numbers: int

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as PyTorch knows it."""
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter or buffer: `offset` counts numbers from the start of its section."""

    name: str
    shape: tuple[int, ...]
    section: int
    offset: int

    @property
    def numbers(self) -> int:
        """How many numbers it has; a 0-d tensor has one."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The names, shapes and places of a model's numbers; a weights block and an update block share it.

    Tied parameters are there once. Frozen parameters and buffers that are neither float nor integer are
    not there: they are the model's `constants`. The padding between entries is zero and stays zero.
    """

    sections: tuple[Section, ...]
    entries: tuple[Entry, ...]

    @classmethod
    def from_module(cls, module: nn.Module) -> Self:
        """The layout of a module. UsageError: nothing to train, lazy or complex parameters."""
        groups: dict[tuple[Role, torch.dtype], list[tuple[str, Tensor]]] = {}
        for name, parameter in _trainable(module).items():
            _check_parameter(name, parameter)
            groups.setdefault(("trainable", parameter.dtype), []).append((name, parameter))
        if not any(parameter.numel() for pairs in groups.values() for _, parameter in pairs):
            raise UsageError(
                f"nothing to train: {type(module).__name__} has no parameter with requires_grad=True; "
                "give the job a model with trainable parameters",
                "nothing_to_train",
                model=type(module).__name__,
            )
        for name, buffer in _moving_buffers(module).items():
            groups.setdefault(("buffer", buffer.dtype), []).append((name, buffer))
        return cls(*_place(groups))

    @property
    def bytes(self) -> int:
        """The size of a block, a multiple of 64."""
        last = self.sections[-1]
        return last.start + _round_up(last.numbers * last.torch_dtype.itemsize)

    @cached_property
    def places(self) -> dict[str, Entry]:
        """The entries by name."""
        return {entry.name: entry for entry in self.entries}

    @cached_property
    def fingerprint(self) -> str:
        """16 characters that are equal where the layouts are equal."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists, which tell whoever reads a checkpoint where each tensor lies."""
        return {"sections": [asdict(s) for s in self.sections], "entries": [asdict(e) for e in self.entries]}

    def of_role(self, role: Role) -> list[int]:
        """The indices of the sections of this role."""
        return [index for index, section in enumerate(self.sections) if section.role == role]

    @property
    def has_buffers(self) -> bool:
        """Whether anything but trainable parameters is in a block."""
        return bool(self.of_role("buffer"))

    def trainable(self, module: nn.Module) -> list[tuple[str, nn.Parameter]]:
        """The module's trainable parameters, tied ones once."""
        return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]

    def bind(self, module: nn.Module, flat: "FlatBuffer") -> None:
        """Make the module's parameters and buffers views of the block: from now on the model *is* the block.

        The values become the block's. Tied tensors stay tied.
        """
        for name, parameter in self.trainable(module):
            parameter.data = flat.view(name)
        first_names: dict[int, str] = {}
        for owner, leaf, name, buffer in list(_buffer_slots(module)):
            first = first_names.setdefault(id(buffer), name)
            if first in self.places:
                # `.data` counts its changes by itself: those of one BatchNorm would count as another's, whose
                # backward pass would then refuse to begin.
                owner._buffers[leaf] = flat.view(first).data

    def constants(self, module: nn.Module) -> dict[str, Tensor]:
        """What a worker needs once beside the block: frozen parameters, bool, complex and unsaved buffers."""
        known = dict(module.named_parameters()) | dict(module.named_buffers())
        return {name: tensor.detach() for name, tensor in known.items() if name not in self.places}


class FlatBuffer:
    """A block of memory seen through a layout.

    `memory` is a 1-D uint8 tensor of `layout.bytes` bytes on any device, 64-byte aligned; it may be shared
    with other processes. Everything here is a view of it.
    """

    def __init__(self, layout: Layout, memory: Tensor) -> None:
        if memory.dtype != torch.uint8 or memory.shape != (layout.bytes,):
            raise UsageError(
                f"a block needs {layout.bytes} bytes (uint8, 1-D), "
                f"not {memory.dtype} of shape {tuple(memory.shape)}",
                "wrong_block",
                bytes=layout.bytes,
                dtype=memory.dtype,
                shape=tuple(memory.shape),
            )
        self.layout = layout
        self.memory = memory
        self._sections = [
            memory[s.start : s.start + s.numbers * s.torch_dtype.itemsize].view(s.torch_dtype)
            for s in layout.sections
        ]

    @classmethod
    def empty(cls, layout: Layout, device: torch.device | str = "cpu") -> Self:
        """A new block, all zeros, in the process's own memory or on `device`."""
        return cls(layout, torch.zeros(layout.bytes, dtype=torch.uint8, device=device))

    def section(self, index: int) -> Tensor:
        """Section `index` as a 1-D tensor of its dtype."""
        return self._sections[index]

    def sections(self) -> list[tuple[str, Tensor]]:
        """All sections with their numbers as names, as a codec takes them."""
        return [(str(index), section) for index, section in enumerate(self._sections)]

    def view(self, name: str) -> Tensor:
        """The parameter or buffer `name` in its shape."""
        entry = self.layout.places[name]
        return self._sections[entry.section][entry.offset : entry.offset + entry.numbers].view(entry.shape)

    def views(self) -> Iterator[tuple[str, Tensor]]:
        """All names with their views, in the layout's order."""
        return ((entry.name, self.view(entry.name)) for entry in self.layout.entries)

    def copy_(self, other: "FlatBuffer") -> None:
        """Take over all values of a block of the same layout, on whatever device."""
        self.memory.copy_(other.memory)

    def copy_trainable_(self, other: "FlatBuffer") -> None:
        """Take over the trainable sections of `other`."""
        for index in self.layout.of_role("trainable"):
            self._sections[index].copy_(other.section(index))

    def subtract_trainable_(self, start: "FlatBuffer", end: "FlatBuffer") -> None:
        """The trainable sections become start - end: the delta of local steps."""
        for index in self.layout.of_role("trainable"):
            out = self._sections[index].copy_(end.section(index))  # from whatever device
            torch.sub(start.section(index), out, out=out)

    def pull_(self, home: "FlatBuffer", share: float) -> None:
        """Become `home`, moved so far towards what is here; integers stay as they are."""
        for here, there in zip(self._sections, home._sections, strict=True):
            if here.is_floating_point():
                torch.lerp(there, here, share, out=here)

    def write_buffers_(self, start: "FlatBuffer", end: "FlatBuffer") -> None:
        """The buffers as an update tells them: floats by their new values, integers by their increments."""
        for index in self.layout.of_role("buffer"):
            out = self._sections[index].copy_(end.section(index))
            if not out.is_floating_point():  # of the unsigned ones PyTorch subtracts uint8 alone
                out.copy_(out.long() - start.section(index).long())

    def toggle_(self, start: "FlatBuffer") -> None:
        """Every bit that is as in `start` becomes 0, every other one 1; a second time undoes it."""
        self.memory.view(torch.int64).bitwise_xor_(start.memory.view(torch.int64))

    def gather(self, module: nn.Module) -> None:
        """Copy the module's values into the block."""
        tensors = _tensors(module)
        for name, view in self.views():
            view.copy_(tensors[name].detach())

    def scatter(self, module: nn.Module) -> None:
        """Copy the block's values into the module."""
        tensors = _tensors(module)
        for name, view in self.views():
            tensors[name].detach().copy_(view)


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def _buffer_slots(module: nn.Module) -> Iterator[tuple[nn.Module, str, str, Tensor]]:
    """Every place that holds a persistent buffer: its module, its name there, its full name, the tensor."""
    for prefix, owner in module.named_modules():
        for leaf, buffer in owner._buffers.items():
            if buffer is not None and leaf not in owner._non_persistent_buffers_set:
                yield owner, leaf, f"{prefix}.{leaf}" if prefix else leaf, buffer


def _persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Each persistent buffer once, under its first name."""
    seen: dict[int, tuple[str, Tensor]] = {}
    for _, _, name, buffer in _buffer_slots(module):
        seen.setdefault(id(buffer), (name, buffer))
    return dict(seen.values())


def _moving_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The persistent buffers that merging knows how to move: floats and integers."""
    return {
        name: buffer
        for name, buffer in _persistent_buffers(module).items()
        if buffer.dtype != torch.bool and not buffer.is_complex()
    }


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**_trainable(module), **_moving_buffers(module)}


def _check_parameter(name: str, parameter: nn.Parameter) -> None:
    if is_lazy(parameter):
        raise UsageError(
            f"parameter {name} has no shape yet (lazy): "
            "run one batch through the model in the job's model factory",
            "lazy_parameter",
            parameter=name,
        )
    if parameter.is_complex():
        raise UsageError(
            f"parameter {name} is {parameter.dtype}: complex parameters cannot be merged; "
            "store the real and imaginary part as two real parameters",
            "complex_parameter",
            parameter=name,
            dtype=parameter.dtype,
        )


def _round_up(count: int, unit: int = LINE_BYTES) -> int:
    return -(-count // unit) * unit


def _place(
    groups: Mapping[tuple[Role, torch.dtype], Sequence[tuple[str, Tensor]]],
) -> tuple[tuple[Section, ...], tuple[Entry, ...]]:
    """One section for each group, one after the other, entries on cache lines."""
    sections: list[Section] = []
    entries: list[Entry] = []
    start = 0
    for (role, dtype), tensors in groups.items():
        offset = 0
        for name, tensor in tensors:
            entries.append(Entry(name, tuple(tensor.shape), len(sections), offset))
            offset += _round_up(tensor.numel(), LINE_BYTES // dtype.itemsize)
        sections.append(Section(role, str(dtype).removeprefix("torch."), start, offset))
        start += _round_up(offset * dtype.itemsize)
    return tuple(sections), tuple(entries)
