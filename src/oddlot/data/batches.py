"""Batches of samples from a dataset, the seeded order of samples, and moving batches to a device."""

from collections.abc import Callable, Mapping
from copy import copy
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from oddlot.core.support.errors import JobError, UsageError
from oddlot.core.support.user_code import trace_of
from oddlot.data.shards import Shards, as_tensor

Indices = NDArray[np.int64]
Cuts = int | tuple[int, ...]
"""Number of shards of equal size, or the boundaries of all shards."""

NOT_READING = -1
"""Value of a mark if no sample is being read."""
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
        self.mark = np.full(1, NOT_READING, np.int64)
        """Index of the sample that is being read, in memory that another process may share."""
        if self.shards is not None:
            return
        if type(data) is TensorDataset and self.collate is default_collate:
            data = data.tensors  # its rows, collated, are the same numbers
        if isinstance(data, tuple) and data and all(_is_array(part) for part in data):
            self.arrays = tuple(as_tensor(part, f"array {at} of {name}") for at, part in enumerate(data))
            lengths = [len(part) for part in self.arrays]
            if len(set(lengths)) > 1:
                message = f"the arrays of {name} have different lengths: {lengths}"
                raise UsageError(message, "different_lengths", name=name, lengths=lengths)
        elif isinstance(data, NO_DATASETS) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise not_a_dataset(self.setting, name, data)
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

    def check_length(self, expected: int, found: int | None = None) -> None:
        """Raise JobError if the number of samples differs from `expected`, the number at the start of the run.

        `found`: the number of samples of an epoch. None: the length of the data.
        """
        if (found := len(self) if found is None else found) != expected:
            raise JobError(
                f"{self.setting} has {found} samples in a worker, but {expected} at the start of the run: do not "
                "change the data during a run, and use the same data on all machines",
                "data_changed",
                found=found,
                expected=expected,
            )

    def fetch(self, indices: Indices) -> Any:
        """Return the batch of these samples."""
        if self.shards is not None and not self.shards.has_samples:
            return self.shards.fetch(indices)
        if self.arrays is not None:
            rows = torch.from_numpy(indices)
            return tuple(part.index_select(0, rows) for part in self.arrays)
        if hasattr(self.data, "__getitems__"):
            return self.collate(self.data.__getitems__(indices.tolist()))
        samples = [self.sample(index) for index in indices.tolist()]
        self.reading = None
        return self.collate(samples)

    @property
    def is_plain(self) -> bool:
        """Whether fetching calls no code of the user for each sample or minibatch."""
        return self.arrays is not None or (self.shards is not None and not self.shards.has_samples)

    @property
    def reading(self) -> int | None:
        """Return the index of the sample that is being read, or None."""
        index = int(self.mark[0])
        return None if index == NOT_READING else index

    @reading.setter
    def reading(self, index: int | None) -> None:
        self.mark[0] = NOT_READING if index is None else index

    def sample(self, index: int) -> Any:
        """Return a sample, and set `reading` to its index."""
        self.mark[0] = index
        return self.data[index]


def not_a_dataset(setting: str, name: str, data: Any) -> UsageError:
    """Return the error for data that are neither a map-style dataset nor arrays."""
    kind = type(data).__name__
    if isinstance(data, IterableDataset):
        message = (
            f"{setting} is {kind}, an IterableDataset, which has no samples by index. Divide it into parts: "
            "oddlot.Shards.from_iterables([part, ...]), where each part is an iterable that a worker reads completely"
        )
    elif isinstance(data, DataLoader):
        message = (
            f"{setting} was set to a {kind} after the job was made, which takes over its settings only at that "
            f"time. Pass it as Job({setting}=...)"
        )
    else:
        message = (
            f"{setting} must be a map-style dataset (with len() and [index]) or a tuple of arrays, not {kind}. Pass a "
            "list of samples, or oddlot.Shards for data in parts"
        )
    return UsageError(message, "not_a_dataset", setting, name=name, type=kind)


def _is_array(part: Any) -> bool:
    return isinstance(part, np.ndarray | Tensor) and part.ndim > 0


def cuts_of(size: int, shards: Cuts) -> list[int]:
    """Return the start of each shard of an epoch, and the end of the last shard."""
    if isinstance(shards, tuple):
        return list(shards)
    return [size * shard // shards for shard in range(shards + 1)]


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
        fixed, cuts = np.arange(size), cuts_of(size, shards)
    else:
        fixed = np.random.Generator(np.random.PCG64([seed, 2**32 - 1])).permutation(size)
        cuts = cuts_of(size, shards)
    return np.concatenate([mixer.permutation(fixed[a:b]) for a, b in pairwise(cuts)])


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
