"""The order of samples in each epoch: a seeded permutation, or the order of a PyTorch sampler."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from oddlot.core.sample_spans import Span, minibatch_cuts
from oddlot.core.support.errors import JobError, UsageError, short
from oddlot.core.support.user_code import trace_of, user_code_failed
from oddlot.data.batches import Cuts, Indices, order
from oddlot.data.seeding import number_of, seeded, state_generators

RECENT = 4
"""Number of epochs with their order in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Minibatch:
    """The samples of a minibatch."""

    positions: int
    """Number of positions in the ledger."""
    indices: Indices
    """Index of each sample in the data."""
    epochs: Indices
    """Epoch of each sample."""
    repeats: Indices
    """For each sample, the number of earlier positions in its epoch with the same sample."""

    @property
    def key(self) -> tuple[bytes, ...]:
        """Return a value that is equal for equal minibatches."""
        return self.indices.tobytes(), self.epochs.tobytes(), self.repeats.tobytes()

    def parts(self, size: int | None) -> "list[Minibatch]":
        """Return parts of at most this number of samples, or the minibatch. Parts do not know their positions."""
        count = len(self.indices)
        if size is None or size >= count:
            return [self]
        slices = [slice(start, start + size) for start in range(0, count, size)]
        return [Minibatch(0, self.indices[one], self.epochs[one], self.repeats[one]) for one in slices]

    @classmethod
    def of(cls, indices: Indices, epoch: int) -> "Minibatch":
        """Return a minibatch of different samples of one epoch, with one position each."""
        return cls(len(indices), indices, np.full_like(indices, epoch), np.zeros_like(indices))


@dataclass(frozen=True, slots=True, eq=False)
class EpochOrder:
    """The samples at the positions of one epoch."""

    indices: Indices
    """Indices of the samples in the data, position after position."""
    repeats: Indices | None = None
    """For each of `indices`, the number of earlier equal ones. None: all 0."""
    cuts: Indices | None = None
    """Start of each position in `indices`, and the end. None: one sample per position."""

    def part(self, start: int, stop: int) -> slice:
        """Return the slice of `indices` for these positions."""
        return slice(start, stop) if self.cuts is None else slice(int(self.cuts[start]), int(self.cuts[stop]))


class SampleOrder(Protocol):
    """The order of samples in each epoch. It is the same on every machine."""

    @property
    def size(self) -> int:
        """Return the number of positions of an epoch. The ledger counts positions."""

    def epoch(self, seed: int, epoch: int) -> EpochOrder:
        """Return the samples at the positions of an epoch."""


@dataclass(frozen=True, slots=True)
class Permutation:
    """A seeded permutation of all samples, or of a random selection of `size` samples in each epoch."""

    samples: int
    """Number of samples in the data."""
    size: int
    shards: Cuts = 1

    def epoch(self, seed: int, epoch: int) -> EpochOrder:
        """Return the samples at the positions of an epoch."""
        if self.size < self.samples:
            return EpochOrder(order(seed, epoch, self.samples)[: self.size])
        return EpochOrder(order(seed, epoch, self.samples, self.shards))


class OfSampler:
    """The order of a PyTorch sampler, one position per sample.

    Before each epoch, `set_epoch(epoch)` of the sampler is called if it exists. The global generators of torch, numpy
    and random, and generators in attributes of the sampler, are seeded from the seed and the epoch. The global
    generators are restored afterwards.
    """

    setting = "sampler"

    def __init__(self, sampler: Any, samples: int) -> None:
        self.sampler, self.samples = sampler, samples
        self._size = self._length()
        self._recent: dict[tuple[int, int], EpochOrder] = {}
        if not self._size:
            raise UsageError(f"{self.setting} is empty: len() is 0", "empty_data", self.setting)

    @property
    def size(self) -> int:
        """Return the number of positions of an epoch."""
        return self._size

    def epoch(self, seed: int, epoch: int) -> EpochOrder:
        """Return the samples at the positions of an epoch. Raise JobError if their number is not `size`."""
        key = (seed, epoch)
        if key not in self._recent:
            self._recent[key] = self._drawn(seed, epoch)
            while len(self._recent) > RECENT:
                del self._recent[next(iter(self._recent))]
        return self._recent[key]

    def check(self, seed: int) -> None:
        """Raise UsageError if the sampler draws two orders for one epoch."""
        one, two = self._drawn(seed, 0), self._drawn(seed, 0)
        if not np.array_equal(one.indices, two.indices) or not np.array_equal(
            _or_empty(one.cuts), _or_empty(two.cuts)
        ):
            raise UsageError(
                f"{self.setting} = {type(self.sampler).__name__} has two orders for the same epoch, so workers would "
                "not agree on the samples. Its order may depend on set_epoch(epoch), on the global generators of "
                "torch, numpy and random, and on generators in its attributes",
                "sampler_not_reproducible",
                self.setting,
                type=type(self.sampler).__name__,
            )

    def _length(self) -> int:
        try:
            return len(self.sampler)
        except Exception as error:
            reason = trace_of(error)
            message = (
                f"len() of {self.setting} failed. A run needs the number of samples of an epoch:\n{reason}"
            )
            raise UsageError(message, "sampler_without_length", self.setting, reason=reason) from error

    def _drawn(self, seed: int, epoch: int) -> EpochOrder:
        try:
            for one in _with_inner(self.sampler):
                if callable(set_epoch := getattr(one, "set_epoch", None)):
                    set_epoch(epoch)
            own = [each for one in _with_inner(self.sampler) for each in state_generators(one)]
            with seeded(number_of(seed, epoch, "sampler"), own):
                items = list(self.sampler)
        except Exception as error:
            raise user_code_failed(self.setting, trace_of(error)) from error
        if len(items) != self._size:
            raise JobError(
                f"{self.setting} has {len(items)} items in epoch {epoch}, but len() was {self._size} at the start: all "
                "epochs must have the same length",
                "sampler_changed",
                found=len(items),
                expected=self._size,
                epoch=epoch,
            )
        return self._order(items)

    def _order(self, items: Sequence[Any]) -> EpochOrder:
        indices = self._indices(items)
        return EpochOrder(indices, repeats_of(indices))

    def _indices(self, items: Iterable[Any]) -> Indices:
        """Return the items as indices of samples. Raise JobError if one is not an index of the data."""
        try:
            indices = np.fromiter(items, np.int64)
        except (TypeError, ValueError):
            indices = np.array([-1])
        wrong = indices[(indices < 0) | (indices >= self.samples)]
        if len(wrong):
            given = next((one for one in items if not _is_index(one, self.samples)), wrong[0])
            raise JobError(
                f"{self.setting} has the item {short(given)}, which is not an index of the data: a whole number from 0 "
                f"to {self.samples - 1}",
                "sampler_item_invalid",
                given=given,
                samples=self.samples,
            )
        return indices


class OfBatchSampler(OfSampler):
    """The order of a PyTorch batch sampler, one position per batch."""

    setting = "batch_sampler"

    def _order(self, items: Sequence[Any]) -> EpochOrder:
        batches = [self._indices(batch) for batch in map(list, items)]
        if not all(map(len, batches)):
            message = f"{self.setting} has an empty batch: leave it out"
            raise JobError(message, "sampler_item_invalid", given=[], samples=self.samples)
        indices = np.concatenate(batches)
        return EpochOrder(indices, repeats_of(indices), np.cumsum([0, *map(len, batches)]))


def sample_order(
    samples: int, shards: Cuts = 1, size: int | None = None, sampler: Any = None, batch_sampler: Any = None
) -> SampleOrder:
    """Return the order of data with this number of samples. `size`: samples of an epoch, by default all.

    The positions of a sampler are divided into shards too, but a shard then has other samples in each epoch.
    """
    if batch_sampler is not None:
        return OfBatchSampler(batch_sampler, samples)
    if sampler is not None:
        return OfSampler(sampler, samples)
    return Permutation(samples, samples if size is None else size, shards)


def minibatches(order: SampleOrder, seed: int, spans: Sequence[Span], batch: int) -> list[Minibatch]:
    """Return the minibatches of these spans, with `batch` positions each. The last may be smaller, or larger by one."""
    parts = [_part(order.epoch(seed, span.epoch), span) for span in spans]
    whole = parts[0] if len(parts) == 1 else _joined(parts)
    size = len(whole.lengths)
    if size <= batch:
        return [whole.between(0, size)]
    return [whole.between(start, stop) for start, stop in pairwise(minibatch_cuts(size, batch))]


class _Positions(NamedTuple):
    """Positions of a task. `lengths` has the number of samples of each."""

    lengths: Indices
    indices: Indices
    epochs: Indices
    repeats: Indices

    def between(self, start: int, stop: int) -> Minibatch:
        """Return the minibatch of the positions `start` to `stop`."""
        samples = slice(int(self.lengths[:start].sum()), int(self.lengths[:stop].sum()))
        return Minibatch(stop - start, self.indices[samples], self.epochs[samples], self.repeats[samples])


def _part(epoch: EpochOrder, span: Span) -> _Positions:
    samples = epoch.part(span.start, span.stop)
    indices = epoch.indices[samples]
    cuts = epoch.cuts
    lengths = np.ones_like(indices) if cuts is None else np.diff(cuts[span.start : span.stop + 1])
    repeats = np.zeros_like(indices) if epoch.repeats is None else epoch.repeats[samples]
    return _Positions(lengths, indices, np.full_like(indices, span.epoch), repeats)


def _joined(parts: Sequence[_Positions]) -> _Positions:
    return _Positions(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def rows_of(order: SampleOrder, seed: int, spans: Iterable[Span]) -> list[int]:
    """Return the sorted indices of the samples at these positions, without duplicates."""
    found = set[int]()
    for number, start, stop in spans:
        epoch = order.epoch(seed, number)
        found.update(epoch.indices[epoch.part(start, stop)].tolist())
    return sorted(found)


def repeats_of(indices: Indices) -> Indices | None:
    """Return the number of earlier equal elements for each element. None: all 0."""
    by_value = np.argsort(indices, kind="stable")
    ordered = indices[by_value]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    if len(starts) == len(indices):
        return None
    counts = np.diff(np.append(starts, len(indices)))
    found = np.empty_like(indices)
    found[by_value] = np.arange(len(indices)) - np.repeat(starts, counts)
    return found


def _with_inner(sampler: Any) -> list[Any]:
    """Return a sampler and the samplers in its attributes, such as the sampler of a `BatchSampler`."""
    found = [sampler]
    for one in found:
        inner = [getattr(one, name, None) for name in ("sampler", "batch_sampler", "samplers")]
        parts = [part for each in inner for part in (each if isinstance(each, list | tuple) else [each])]
        found += [
            part for part in parts if hasattr(part, "__iter__") and all(part is not own for own in found)
        ]
    return found


def _is_index(item: Any, samples: int) -> bool:
    try:
        return 0 <= int(np.int64(item)) < samples
    except (TypeError, ValueError):
        return False


def _or_empty(cuts: Indices | None) -> Indices:
    return np.empty(0, np.int64) if cuts is None else cuts
