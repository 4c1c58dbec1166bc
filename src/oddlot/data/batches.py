"""Batches of samples from a dataset, the seeded order of samples, and moving batches to a device."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, default_collate

from oddlot.core.sample_spans import Span, minibatch_cuts
from oddlot.core.support.errors import JobError, UsageError
from oddlot.core.support.user_code import trace_of
from oddlot.data.shards import Shards, as_tensor

Indices = NDArray[np.int64]
Cuts = int | tuple[int, ...]
"""Number of shards of equal size, or the boundaries of all shards."""

NO_DATASETS = (IterableDataset, Mapping, str, bytes, bytearray)
"""Types that are not map-style datasets, even if they have a length and items."""


class Batches:
    """Batches of a dataset, or of a tuple of arrays, by sample indices.

    For a tuple of arrays or tensors of equal length, a batch is a tuple with the rows of each. A list is a dataset.
    """

    def __init__(
        self, data: Any, collate: Callable[[list[Any]], Any] | None = None, name: str = "data"
    ) -> None:
        self.data = data
        self.setting = "train_data" if name == "data" else "eval_data"
        self.collate = collate or default_collate
        self.arrays: tuple[Tensor, ...] | None = None
        self.shards = data if isinstance(data, Shards) else None
        self.reading: int | None = None
        """Index of the sample that is being read."""
        if self.shards is not None:
            return
        if isinstance(data, tuple) and data and all(_is_array(part) for part in data):
            self.arrays = tuple(as_tensor(part, f"array {at} of {name}") for at, part in enumerate(data))
            lengths = [len(part) for part in self.arrays]
            if len(set(lengths)) > 1:
                message = f"the arrays of {name} have different lengths: {lengths}"
                raise UsageError(message, "different_lengths", name=name, lengths=lengths)
        elif isinstance(data, NO_DATASETS) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            kind = type(data).__name__ + (", an IterableDataset" if isinstance(data, IterableDataset) else "")
            raise UsageError(
                f"{self.setting} must be a map-style dataset (with len() and [index]) or a tuple of arrays, not "
                f"{kind}. Pass a list of samples, or oddlot.Shards for data in parts",
                "not_a_dataset",
                name=name,
                type=type(data).__name__,
            )
        try:
            size = len(self)
        except Exception as error:
            reason = trace_of(error)
            message = f"len() of {name} failed:\n{reason}"
            raise JobError(message, "user_code_failed", where=f"len() of {name}", reason=reason) from error
        if not size:
            message = f"{name} is empty: it needs at least one sample"
            raise UsageError(message, "empty_data", name=name)

    def __len__(self) -> int:
        return len(self.arrays[0] if self.arrays else self.data)

    def check_length(self, expected: int) -> None:
        """Raise JobError if the number of samples differs from `expected`, the number at the start of the run."""
        if (found := len(self)) != expected:
            raise JobError(
                f"{self.setting} has {found} samples in a worker, but {expected} at the start of the run: do not "
                "change the data during a run, and use the same data on all machines",
                "data_changed",
                found=found,
                expected=expected,
            )

    def fetch(self, indices: Indices) -> Any:
        """Return the batch of these samples."""
        if self.shards is not None:
            return self.shards.fetch(indices)
        if self.arrays is not None:
            rows = torch.from_numpy(indices)
            return tuple(part.index_select(0, rows) for part in self.arrays)
        if hasattr(self.data, "__getitems__"):
            return self.collate(self.data.__getitems__(indices.tolist()))
        samples = [self._sample(index) for index in indices.tolist()]
        self.reading = None
        return self.collate(samples)

    def _sample(self, index: int) -> Any:
        """Return a sample, and set `reading` to its index."""
        self.reading = index
        return self.data[index]


def _is_array(part: Any) -> bool:
    return isinstance(part, np.ndarray | Tensor) and part.ndim > 0


@lru_cache(maxsize=4)
def order(seed: int, epoch: int, size: int, shards: Cuts = 1) -> Indices:
    """Return the sample index at each position of an epoch, int64 [size]. It is the same on every machine.

    With shards, the positions of a shard have the same samples in every epoch, in a different order. If `shards` is a
    number, the samples are divided randomly. If it is a tuple, it has the boundaries of the parts of the data.
    """
    if shards == 1:
        return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(size)
    mixer = np.random.Generator(np.random.PCG64([seed, epoch]))
    if isinstance(shards, tuple):
        fixed, cuts = np.arange(size), list(shards)
    else:
        fixed = np.random.Generator(np.random.PCG64([seed, 2**32 - 1])).permutation(size)
        cuts = [size * shard // shards for shard in range(shards + 1)]
    return np.concatenate([mixer.permutation(fixed[a:b]) for a, b in pairwise(cuts)])


def minibatches(spans: Sequence[Span], batch: int, seed: int, size: int, shards: Cuts = 1) -> list[Indices]:
    """Return the sample indices of the spans in batches of `batch`. The last may be smaller, or larger by one."""
    parts = [order(seed, epoch, size, shards)[start:stop] for epoch, start, stop in spans]
    indices = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if len(indices) <= batch:
        return [indices]
    return [indices[start:stop] for start, stop in pairwise(minibatch_cuts(len(indices), batch))]


def move(batch: Any, device: torch.device) -> Any:
    """Return the batch with all its tensors on the device. Copies to any device but the CPU are asynchronous.

    Return the same object if no tensor was moved. For objects with a method `to(device)`, this method is called. Other
    subclasses of dict and list are copied with their attributes.
    """
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=device.type != "cpu")
    if callable(getattr(type(batch), "to", None)):  # on the class, because __getattr__ may raise
        return batch if device.type == "cpu" else batch.to(device)
    if not isinstance(batch, dict | tuple | list):
        return batch
    keys = list(batch) if isinstance(batch, dict) else range(len(batch))
    moved = {key: part for key in keys if (part := move(batch[key], device)) is not batch[key]}
    if not moved:
        return batch
    if isinstance(batch, tuple):
        parts = [moved.get(key, batch[key]) for key in keys]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    changed = copy(batch)
    for key, part in moved.items():
        changed[key] = part
    return changed
