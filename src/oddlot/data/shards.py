"""Training data in parts. A worker opens a part at its first task on it."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oddlot.core.support.errors import InvalidValue, JobError, UsageError
from oddlot.data.seeding import number_of, seeded

Arrays = Sequence[Any]
Read = Callable[[Any], Arrays]
"""Function that returns the arrays of one part, all of the same length."""


def read_npz(path: Any) -> Arrays:
    """Return the arrays of a `.npz` file, in their order. The path may be any URL that fsspec can read.

    Raise JobError if the file is damaged or needs unpickling.
    """
    import fsspec

    with fsspec.open(str(path), "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                return [arrays[name] for name in arrays.files]
        # Numpy's message suggests trusting the file.
        except (ValueError, AttributeError, TypeError, BadZipFile):
            message = (
                f"part {path} of the data cannot be read: it is not a complete .npz file of plain numbers"
            )
            raise JobError(message, "not_npz", path=str(path)) from None


def as_tensor(part: Any, name: str) -> Tensor:
    """Return the array as a tensor that shares its memory. Raise UsageError if PyTorch does not have its dtype."""
    try:
        with warnings.catch_warnings():  # PyTorch warns of read-only arrays, but nothing writes to these
            warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
            return part if isinstance(part, Tensor) else torch.from_numpy(part)
    except (TypeError, ValueError) as error:
        message, dtype = f"{name} ({part.dtype}) cannot become a tensor: {error}", str(part.dtype)
        raise UsageError(message, "not_a_tensor", name=name, dtype=dtype, reason=str(error)) from None


def _kind(array: Any) -> str:
    """Return the dtype and number of dimensions, such as `float32[:, :]`."""
    dtype = str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")
    return f"{dtype}[{', '.join(':' * getattr(array, 'ndim', 1))}]"


class _Slices:
    """Reads slices of arrays, such as memory-mapped arrays."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays

    def __call__(self, part: tuple[int, int]) -> Arrays:
        return [array[part[0] : part[1]] for array in self.arrays]


class Shards:
    """Training data in parts. Pass it as `Job(train_data=Shards(paths), ...)`.

    A run has one shard per part. A worker opens a part at its first task on it, and preferably gets tasks on its open
    parts.

    Args:
        parts: Arguments of `read`, one for each part: by default, paths or URLs of `.npz` files.
        read: Function that takes an element of `parts` and returns its arrays, all of the same length. Row i of each
            array belongs to sample i.
        sizes: Number of samples of each part. If None, every part is read once to count them.
        max_open: Largest number of parts that a worker keeps in memory. If None, it keeps all parts that it opened.

    Raises:
        UsageError: `parts` is empty, or `sizes` does not fit it.
        JobError: A part cannot be read, or has changed since its samples were counted.
    """

    has_samples = False
    """Whether a part has samples, from which `collate` makes minibatches, instead of arrays."""

    def __init__(
        self,
        parts: Sequence[Any],
        read: Read = read_npz,
        sizes: Sequence[int] | None = None,
        max_open: int | None = None,
    ) -> None:
        if isinstance(parts, str | bytes):
            raise InvalidValue("parts", parts, "a list of paths or URLs", "Shards")
        if max_open is not None and max_open < 1:
            raise InvalidValue("max_open", max_open, "at least 1", "Shards")
        self.parts, self.read, self.max_open = list(parts), read, max_open
        if not self.parts:
            raise UsageError("parts is empty: the data need at least one part", "no_parts", "parts")
        self.first: tuple[str, list[str]] | None = None
        """The part that was read first, and the dtype and dimensions of its arrays."""
        self.sizes = [self._size(part) for part in self.parts] if sizes is None else list(sizes)
        if len(self.sizes) != len(self.parts) or min(self.sizes) < 1:
            message = f"sizes must be {len(self.parts)} numbers of at least 1, one for each part"
            raise UsageError(message, "invalid_sizes", "sizes", parts=len(self.parts), sizes=self.sizes)
        self.cuts = (0, *accumulate(self.sizes))
        """Start positions of the parts, and the end of the last part."""
        self.open: dict[int, Any] = {}
        """Contents of the open parts. The part that was used last comes last."""
        self.bytes_opened = 0

    @classmethod
    def of(cls, arrays: Arrays, count: int) -> "Shards":
        """Split arrays of equal length into `count` contiguous parts.

        With memory-mapped arrays, a worker reads only its own parts.
        """
        lengths = [len(array) for array in arrays]
        if not lengths or len(set(lengths)) > 1 or not 1 <= count <= lengths[0]:
            message = f"arrays of lengths {lengths} cannot be cut into {count} parts"
            raise UsageError(message, "invalid_cut", "count", lengths=lengths, count=count)
        cuts = [lengths[0] * part // count for part in range(count + 1)]
        return cls(list(pairwise(cuts)), _Slices(arrays), [b - a for a, b in pairwise(cuts)])

    @staticmethod
    def from_iterables(
        parts: Sequence[Any], sizes: Sequence[int] | None = None, max_open: int | None = None
    ) -> "Shards":
        """Return data with one part per iterable, such as a PyTorch `IterableDataset`, or function that returns one.

        A worker reads a part completely at its first task on it, and keeps its samples in memory. Minibatches have
        samples of one part, in random order, and `collate` makes a batch of them. Each sample counts once per epoch,
        as for other data, if an iterable yields the same samples in the same order each time. The order is not
        checked; the number is. The global generators of torch, numpy and random are seeded before a part is read, so
        its random augmentations are the same in all epochs. Make others in `collate`.

        Args:
            parts: Iterables, or functions without arguments that return one. Generators are rejected: they can be read
                only once.
            sizes: Number of samples of each part. If None, it is `len()` of a part. A part without `len()` is read
                once to count its samples.
            max_open: As for `Shards`.
        """
        return IterableParts(parts, sizes, max_open)

    def __len__(self) -> int:
        return self.cuts[-1]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without open parts, because each worker opens its own."""
        return self.__dict__ | {"open": {}, "bytes_opened": 0}

    def fetch(self, indices: NDArray[np.int64]) -> tuple[Tensor, ...]:
        """Return these rows of each array, as tensors."""
        numbers = np.searchsorted(self.cuts, indices, side="right") - 1
        found = [
            (np.flatnonzero(numbers == number), self._part(int(number))) for number in np.unique(numbers)
        ]
        if len(found) == 1:
            rows = torch.from_numpy(indices - self.cuts[int(numbers[0])])
            return tuple(array.index_select(0, rows) for array in found[0][1])
        outs = [torch.empty((len(indices), *array.shape[1:]), dtype=array.dtype) for array in found[0][1]]
        for places, arrays in found:
            rows = torch.from_numpy(indices[places] - self.cuts[int(numbers[places[0]])])
            for out, array in zip(outs, arrays, strict=True):
                out[torch.from_numpy(places)] = array.index_select(0, rows)
        return tuple(outs)

    def number_of(self, index: int) -> int:
        """Return the number of the part that contains a row."""
        return int(np.searchsorted(self.cuts, index, side="right")) - 1

    def parts_of(self, indices: NDArray[np.int64]) -> list[Any]:
        """Return the parts that contain these rows."""
        numbers = np.searchsorted(self.cuts, indices, side="right") - 1
        return [self.parts[number] for number in np.unique(numbers)]

    def close(self) -> None:
        """Close all parts. The next task opens the parts that it needs."""
        self.open.clear()

    def _part(self, number: int) -> Any:
        """Return the contents of a part. Open it if needed, and close the part that was not used for longest."""
        contents = self.open.pop(number, None)
        if contents is None:
            if self.max_open is not None and len(self.open) >= self.max_open:
                del self.open[next(iter(self.open))]
            contents = self._opened(number)
        self.open[number] = contents
        return contents

    def _opened(self, number: int) -> Any:
        """Read a part, and return its contents."""
        part = self.parts[number]
        arrays = self._read(part)
        self._check_rows(number, sorted(set(map(len, arrays))))
        self._check_kinds(part, arrays)
        tensors = tuple(as_tensor(array, f"an array of part {part}") for array in arrays)
        self.bytes_opened += sum(tensor.nbytes for tensor in tensors)
        return tensors

    def _check_rows(self, number: int, rows: list[int]) -> None:
        """Raise JobError if a part has another number of rows than at the start."""
        part, expected = self.parts[number], self.sizes[number]
        if rows != [expected]:
            raise JobError(
                f"part {part} of the data has {rows} rows, not {expected}: do not change the data during a run",
                "part_changed",
                path=str(part),
                rows=rows,
                expected=expected,
            )

    def _size(self, part: Any) -> int:
        """Read a part and return its number of rows."""
        arrays = self._read(part)
        self._check_kinds(part, arrays)
        return len(arrays[0])

    def _check_kinds(self, part: Any, arrays: Arrays) -> None:
        """Raise JobError if the number, dtypes or dimensions of the arrays differ from the first part."""
        kinds = [_kind(array) for array in arrays]
        first, expected = self.first = self.first or (str(part), kinds)
        if kinds != expected:
            raise JobError(
                f"part {part} of the data has the arrays {', '.join(kinds)}; part {first} has {', '.join(expected)}. "
                "Save the same arrays in the same order and with the same dtypes in all parts",
                "part_differs",
                path=str(part),
                found=kinds,
                first=first,
                expected=expected,
            )

    def _read(self, part: Any) -> Arrays:
        try:
            arrays = list(self.read(part))
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            message, reason = f"part {part} of the data cannot be read: {error}", str(error)
            raise JobError(message, "unreadable_file", path=str(part), reason=reason) from error
        if not arrays:
            raise JobError(f"part {part} of the data has no array", "empty_part", path=str(part))
        return arrays


class _Part:
    """An iterable, or a function that returns one, with a name for errors."""

    def __init__(self, number: int, source: Any) -> None:
        self.number, self.source = number, source

    def __str__(self) -> str:
        kind = getattr(self.source, "__qualname__", type(self.source).__name__)
        return f"{self.number} ({kind})"

    def iterable(self) -> Any:
        return self.source if isinstance(self.source, Iterable) else self.source()


class IterableParts(Shards):
    """Data in parts that are iterables. See `Shards.from_iterables`."""

    has_samples = True

    def __init__(
        self, parts: Sequence[Any], sizes: Sequence[int] | None = None, max_open: int | None = None
    ) -> None:
        given: Any = parts
        if not isinstance(given, list | tuple):
            raise InvalidValue("parts", given, "a list of iterables", "Shards.from_iterables")
        for number, part in enumerate(parts):
            _check(number, part)
        named = [_Part(number, part) for number, part in enumerate(parts)]
        super().__init__(named, _samples, sizes, max_open)

    def __getitem__(self, index: int) -> Any:
        number = self.number_of(index)
        return self._part(number)[index - self.cuts[number]]

    def _opened(self, number: int) -> Any:
        with seeded(number_of("part", number)):
            samples = self._read(self.parts[number])
        self._check_rows(number, [len(samples)])
        return samples

    def _size(self, part: Any) -> int:
        """Return the number of samples of a part. Read the part if it has no `len()`."""
        try:
            return len(part.iterable())
        except (TypeError, NotImplementedError):
            return len(self._read(part))


def _samples(part: _Part) -> list[Any]:
    return list(part.iterable())


def _check(number: int, part: Any) -> None:
    """Raise UsageError if a part is no iterable, or can be read only once."""
    kind = type(part).__name__
    if not isinstance(part, Iterable) and not callable(part):
        message = f"part {number} is {kind}: pass an iterable, or a function that returns one"
        raise UsageError(message, "part_not_iterable", "parts", part=number, type=kind)
    if isinstance(part, Iterator):
        raise UsageError(
            f"part {number} is {kind}, which can be read only once, but workers may read a part again. Pass a function "
            "that returns it",
            "part_read_once",
            "parts",
            part=number,
            type=kind,
        )
