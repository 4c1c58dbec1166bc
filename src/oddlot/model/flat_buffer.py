"""The layout of a model in one block of bytes, and `FlatBuffer`, a block with a layout."""

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from oddlot.core.support.errors import UsageError
from oddlot.model.running_averages import average
from oddlot.model.tensor_checks import MERGEABLE, check_tensors, is_plain

LINE_BYTES = 64
"""Alignment of sections and entries: a cache line, as for PyTorch's own tensors, so views are as fast."""

COUNTERS = frozenset({"num_batches_tracked"})
"""Names of integer buffers that count. They grow by the increments of workers."""

Role = Literal["trainable", "buffer", "counter", "without_gradient"]
"""Content of a section: trainable parameters, saved buffers, integer buffers that count or, in an update, one flag per
trainable parameter: 1 if it had no gradient in the task."""


Runs = dict[tuple[Role, torch.dtype, int], list[tuple[str, Tensor]]]
"""The named tensors of each section, by role, dtype and parameter group."""


@dataclass(frozen=True, slots=True)
class Section:
    """A contiguous range of elements of one role, dtype and parameter group.

    `start` is in bytes. `numbers` is the number of elements, including padding.
    """

    role: Role
    dtype: str
    start: int
    numbers: int
    group: int = 0
    """Parameter group of trainable parameters, or 0 for other roles."""

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as a `torch.dtype`."""
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One parameter or buffer. `offset` is in elements from the start of its section."""

    name: str
    shape: tuple[int, ...]
    section: int
    offset: int
    rank: int = 0
    """Number of the parameter in the model. Entries are sorted by section. 0 for buffers."""

    @property
    def numbers(self) -> int:
        """Number of elements. 1 for a 0-D tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The names, shapes and positions of a model's tensors in a block. Weights and updates have the same layout.

    Tied parameters occur once. Complex buffers are excluded, and so are frozen parameters and unsaved buffers unless
    they match `as_buffers`. These are the model's `constants`. The padding between entries is always zero.
    """

    sections: tuple[Section, ...]
    entries: tuple[TensorEntry, ...]

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        as_buffers: Collection[str] = (),
        group_of: Callable[[str], int] = lambda _: 0,
    ) -> Self:
        """Return the layout of a module.

        Frozen parameters and unsaved buffers with a name that matches a pattern of `as_buffers` (`teacher.*`) are
        merged like saved buffers. `group_of` returns the parameter group of a trainable parameter. Each group has its
        own sections. Raise UsageError if there is no trainable parameter, a tensor cannot be merged or saved, or a
        pattern matches nothing.
        """
        check_tensors(module)
        runs: Runs = {}
        for name, parameter in _trainable(module).items():
            runs.setdefault(("trainable", parameter.dtype, group_of(name)), []).append((name, parameter))
        if not any(parameter.numel() for pairs in runs.values() for _, parameter in pairs):
            raise UsageError(
                f"nothing to train: {type(module).__name__} has no parameter with requires_grad=True. "
                "Use a model with trainable parameters",
                "nothing_to_train",
                model=type(module).__name__,
            )
        trainable = sum(map(len, runs.values()))
        for name, tensor in {**_matching(module, as_buffers), **_buffers(module, saved=True)}.items():
            if tensor.dtype in MERGEABLE:
                role: Role = "counter" if name.rpartition(".")[2] in COUNTERS else "buffer"
                runs.setdefault((role, tensor.dtype, 0), []).append((name, tensor))
        ranks = {name: rank for rank, name in enumerate(_trainable(module))}
        return cls(*_place(runs, trainable, ranks))

    @property
    def bytes(self) -> int:
        """Size of a block in bytes, a multiple of 64."""
        last = self.sections[-1]
        return last.start + _round_up(last.numbers * last.torch_dtype.itemsize)

    @cached_property
    def places(self) -> dict[str, TensorEntry]:
        """Entries by name."""
        return {entry.name: entry for entry in self.entries}

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the layout, 16 characters long."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return the layout as plain dicts and lists, for checkpoints."""
        return {"sections": [asdict(s) for s in self.sections], "entries": [asdict(e) for e in self.entries]}

    def of_role(self, role: Role) -> Sequence[int]:
        """Return the indices of the sections with this role."""
        return self._by_role.get(role, ())

    @cached_property
    def _by_role(self) -> dict[Role, list[int]]:
        found: dict[Role, list[int]] = {}
        for index, section in enumerate(self.sections):
            found.setdefault(section.role, []).append(index)
        return found

    @property
    def has_buffers(self) -> bool:
        """Whether the layout has buffers or counters."""
        return bool(self.of_role("buffer") or self.of_role("counter"))

    @cached_property
    def trainable_entries(self) -> tuple[TensorEntry, ...]:
        """Trainable parameters, in the order of `FlatBuffer.without_gradient`."""
        indices = set(self.of_role("trainable"))
        return tuple(entry for entry in self.entries if entry.section in indices)

    def trainable(self, module: nn.Module) -> list[tuple[str, nn.Parameter]]:
        """Return the module's trainable parameters. Tied parameters occur once."""
        return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]

    def bind(self, module: nn.Module, flat: "FlatBuffer") -> None:
        """Make the module's parameters and buffers views of the block `flat`. Tied tensors remain tied."""
        for name, parameter in module.named_parameters():
            if name in self.places:
                parameter.data = flat.view(name)
        first_names: dict[int, str] = {}
        for owner, leaf, name, buffer, _ in _buffer_slots(module):
            first = first_names.setdefault(id(buffer), name)
            if first in self.places:
                # `.data` has its own version counter. Otherwise an in-place change of one BatchNorm would count for
                # another, and the backward pass of the other would fail.
                owner._buffers[leaf] = flat.view(first).data

    def constants(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the tensors that a worker needs in addition to the block.

        These are frozen parameters, complex buffers and unsaved buffers. Unsaved buffers that cannot be copied, such as
        sparse buffers, come from the job's model factory.
        """
        known = dict(module.named_parameters()) | dict(module.named_buffers())
        return {
            name: tensor.detach()
            for name, tensor in known.items()
            if name not in self.places and is_plain(tensor)
        }


class FlatBuffer:
    """A block of memory with a layout.

    `memory` is a 1-D uint8 tensor of `layout.bytes` bytes on any device, 64-byte aligned. It may be shared with other
    processes. All tensors of a FlatBuffer are views of it.
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
        (index,) = layout.of_role("without_gradient")
        self.without_gradient = self._sections[index][: len(layout.trainable_entries)]
        """In an update, uint8 [trainable parameters]: 1 if the parameter had no gradient in the task."""

    @classmethod
    def empty(cls, layout: Layout, device: torch.device | str = "cpu") -> Self:
        """Return a new block of zeros on `device`, in memory of this process."""
        return cls(layout, torch.zeros(layout.bytes, dtype=torch.uint8, device=device))

    def section(self, index: int) -> Tensor:
        """Return section `index` as a 1-D tensor of its dtype."""
        return self._sections[index]

    def sections(self) -> list[tuple[str, Tensor]]:
        """Return all sections with their indices as names."""
        return [(str(index), section) for index, section in enumerate(self._sections)]

    def buffers(self) -> list[tuple[str, Tensor]]:
        """Return the sections of buffers and counters. They are sent without encoding."""
        layout = self.layout
        indices = (*layout.of_role("buffer"), *layout.of_role("counter"))
        return [(str(index), self._sections[index]) for index in indices]

    def without_buffers(self) -> list[tuple[str, Tensor]]:
        """Return the sections that a codec encodes: all except buffers and counters."""
        exact = dict(self.buffers())
        return [(name, section) for name, section in self.sections() if name not in exact]

    def view(self, name: str) -> Tensor:
        """Return a view of the parameter or buffer `name`, with its shape."""
        entry = self.layout.places[name]
        return self._sections[entry.section][entry.offset : entry.offset + entry.numbers].view(entry.shape)

    def views(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all names with their views, in the layout's order."""
        return ((entry.name, self.view(entry.name)) for entry in self.layout.entries)

    def copy_(self, other: "FlatBuffer") -> None:
        """Copy all values of a block of the same layout, on any device."""
        self.memory.copy_(other.memory)

    def copy_trainable_(self, other: "FlatBuffer") -> None:
        """Copy the trainable sections of `other`."""
        for index in self.layout.of_role("trainable"):
            self._sections[index].copy_(other.section(index))

    def subtract_trainable_(self, start: "FlatBuffer", end: "FlatBuffer") -> None:
        """Set the trainable sections to `start` - `end`, the delta of local steps."""
        for index in self.layout.of_role("trainable"):
            out = self._sections[index].copy_(end.section(index))  # from any device
            torch.sub(start.section(index), out, out=out)

    def pull_(self, home: "FlatBuffer", share: float) -> None:
        """Set parameters and running averages to `home`, moved by `share` towards the current values.

        Integer buffers and counters do not change.
        """
        for index in self.layout.of_role("trainable"):
            here = self._sections[index]
            torch.lerp(home.section(index), here, share, out=here)
        for index in self.layout.of_role("buffer"):
            here = self._sections[index]
            if here.is_floating_point():
                now = here.clone()
                average(home.section(index), here, [now], [1.0], share, now)

    def write_buffers_(self, start: "FlatBuffer", end: "FlatBuffer") -> None:
        """Write the buffers of an update: new values, and increments of counters."""
        for index in self.layout.of_role("buffer"):
            self._sections[index].copy_(end.section(index))
        for index in self.layout.of_role("counter"):
            out = self._sections[index].copy_(end.section(index))
            # PyTorch cannot subtract unsigned integers except uint8.
            out.copy_(out.long() - start.section(index).long())

    def toggle_(self, start: "FlatBuffer") -> None:
        """Replace all bits by their exclusive or with `start`. A second call restores them."""
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


def _buffer_slots(module: nn.Module) -> list[tuple[nn.Module, str, str, Tensor, bool]]:
    """Return the module, name, full name and tensor of every buffer, and whether it is saved.

    Saved buffers come first.
    """
    slots = [
        (
            owner,
            leaf,
            f"{prefix}.{leaf}" if prefix else leaf,
            buffer,
            leaf not in owner._non_persistent_buffers_set,
        )
        for prefix, owner in module.named_modules()
        for leaf, buffer in owner._buffers.items()
        if buffer is not None
    ]
    return sorted(slots, key=lambda slot: not slot[-1])


def _buffers(module: nn.Module, saved: bool) -> dict[str, Tensor]:
    """Return each saved or unsaved buffer once, under its first name."""
    seen: dict[int, tuple[str, Tensor, bool]] = {}
    for _, _, name, buffer, is_saved in _buffer_slots(module):
        seen.setdefault(id(buffer), (name, buffer, is_saved))
    return {name: buffer for name, buffer, is_saved in seen.values() if is_saved == saved}


def _matching(module: nn.Module, patterns: Collection[str]) -> dict[str, Tensor]:
    """Return the frozen parameters and unsaved buffers that match a pattern.

    Raise UsageError if a pattern matches nothing.
    """
    known: dict[str, Tensor] = {
        name: each for name, each in module.named_parameters() if not each.requires_grad
    }
    known |= {name: each for name, each in _buffers(module, saved=False).items() if is_plain(each)}
    fitting = {pattern: [name for name in known if fnmatchcase(name, pattern)] for pattern in patterns}
    for pattern, names in fitting.items():
        if not names:
            raise UsageError(
                f"as_buffers: {pattern!r} matches no frozen parameter and no unsaved buffer. The model has: "
                f"{', '.join(known) or 'none'}",
                "no_such_parameter",
                "as_buffers",
                given=pattern,
                names=list(known),
            )
    return {name: known[name] for names in fitting.values() for name in names}


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    buffers = _buffers(module, saved=True) | _buffers(module, saved=False)
    return {**dict(module.named_parameters()), **buffers}


def _round_up(count: int, unit: int = LINE_BYTES) -> int:
    return -(-count // unit) * unit


def _place(
    runs: Runs, trainable: int, ranks: Mapping[str, int]
) -> tuple[tuple[Section, ...], tuple[TensorEntry, ...]]:
    """Return a section for each run, and the entries. Entries start on cache lines.

    The last section has a byte for each of the `trainable` parameters.
    """
    sections: list[Section] = []
    entries: list[TensorEntry] = []
    start = 0
    for (role, dtype, group), tensors in runs.items():
        offset = 0
        for name, tensor in tensors:
            rank = ranks.get(name, 0)
            entries.append(TensorEntry(name, tuple(tensor.shape), len(sections), offset, rank))
            offset += _round_up(tensor.numel(), LINE_BYTES // dtype.itemsize)
        sections.append(Section(role, str(dtype).removeprefix("torch."), start, offset, group))
        start += _round_up(offset * dtype.itemsize)
    sections.append(Section("without_gradient", "uint8", start, _round_up(trainable)))
    return tuple(sections), tuple(entries)
