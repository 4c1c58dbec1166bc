"""Seeding of the random generators in the user's code: global generators, and generators in datasets."""

import ctypes
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from oddlot.core.support.user_warnings import warn
from oddlot.core.tasks import Task

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
"""Types of generators that `reseed` supports."""


def seed_all(number: int, device: torch.device | None = None) -> None:
    """Seed the global generators of torch (on the CPU and on `device`), numpy and random."""
    torch.default_generator.manual_seed(number)  # torch.manual_seed takes 0.1 ms, even without other devices
    if device is not None and device.type == "cuda":
        torch.cuda.manual_seed(number)
    elif device is not None and device.type == "mps":
        torch.mps.manual_seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002 - users' augmentations use it
    random.seed(number)


@dataclass(frozen=True)
class Chance:
    """A source of random numbers: a generator, or the global generator of a library."""

    get: Callable[[], Any]
    """Returns the state."""
    set: Callable[[Any], Any]
    """Restores a state."""
    seed: Callable[[int], Any]
    """Seeds it with a number from 0 to 2^32 - 1."""
    differs: Callable[[Any, Any], bool]
    """Returns whether two states, or two results of `glance`, differ."""
    glance: Callable[[], Any] | None = None
    """Returns a part of the state that changes with every draw, if that is faster than `get`."""
    state: Callable[[Any], Any] = lambda glance: glance
    """Returns the state with this part."""


def _numpy_differs(one: Any, other: Any) -> bool:
    if isinstance(one, bytes):
        return bool(one != other)
    return one[2:] != other[2:] or not np.array_equal(one[1], other[1])


def _numpy_words() -> Any:
    """Return the memory of numpy's global generator. `get_state` takes 70 µs."""
    bits = np.random.get_bit_generator()  # type: ignore[attr-defined]  # since NumPy 1.24
    if type(bits) is not np.random.MT19937:  # set by set_bit_generator
        return np.random.get_state()  # noqa: NPY002 - as above
    return ctypes.string_at(bits.ctypes.state_address, MT19937_BYTES)


def _numpy_state(words: Any) -> Any:
    """Return the state with this memory, without the second number of a pair of normal numbers."""
    if not isinstance(words, bytes):
        return words
    numbers = np.frombuffer(words, np.uint32)
    return "MT19937", numbers[:-1], int(numbers[-1])


def _differs(one: Any, other: Any) -> bool:
    return bool(one != other)


MT19937_BYTES = 625 * 4
"""Size of the state of `np.random.MT19937`: 624 words and a position."""
GLOBAL = {
    "torch": Chance(
        torch.default_generator.get_state,
        torch.default_generator.set_state,
        torch.default_generator.manual_seed,
        lambda one, other: not torch.equal(one, other),
    ),
    "numpy": Chance(
        np.random.get_state,
        np.random.set_state,
        np.random.seed,
        _numpy_differs,
        _numpy_words,
        _numpy_state,
    ),
    "random": Chance(random.getstate, random.setstate, random.seed, _differs),
}
"""The global generators that users' code draws from."""


def chance_of(generator: Any) -> Chance:
    """Return the state and the seeding of one of `GENERATORS`."""

    def seed(number: int) -> None:
        reseed([generator], number)

    match generator:
        case torch.Generator():
            differs = GLOBAL["torch"].differs
            return Chance(generator.get_state, generator.set_state, seed, differs)
        case np.random.Generator():
            bits = generator.bit_generator
            return Chance(lambda: bits.state, lambda state: setattr(bits, "state", state), seed, _bits_differ)
        case np.random.RandomState():
            return Chance(generator.get_state, generator.set_state, seed, _numpy_differs)
        case _:
            return Chance(generator.getstate, generator.setstate, seed, _differs)


def _bits_differ(one: Any, other: Any) -> bool:
    return repr(one) != repr(other)


def state_generators(owner: Any) -> list[Any]:
    """Return the generators in the attributes of an object."""
    return [value for value in getattr(owner, "__dict__", {}).values() if isinstance(value, GENERATORS)]


def generators_of(data: Any) -> list[Any]:
    """Return the generators in the attribute `rng` of a dataset, and of the datasets inside it.

    Inner datasets are in `dataset` (`Subset`) or `datasets` (`ConcatDataset`).
    """
    return [own for own in _rngs(data) if isinstance(own, GENERATORS)]


def datasets_of(data: Any, seen: frozenset[int] = frozenset()) -> list[Dataset[Any]]:
    """Return a dataset and the datasets inside it, or an empty list for other data."""
    if not isinstance(data, Dataset) or id(data) in seen:
        return []
    seen |= {id(data)}
    found, parts = [data], getattr(data, "datasets", ())
    for inner in (getattr(data, "dataset", None), *(parts if isinstance(parts, list | tuple) else ())):
        found += datasets_of(inner, seen)
    return found


def warn_of_rng(data: Any) -> None:
    """Warn if the attribute `rng` of a dataset is not a generator that `reseed` supports."""
    for own in _rngs(data):
        if own is not None and not isinstance(own, GENERATORS):
            kind = type(own).__name__
            warn(
                f"the dataset's rng is a {kind}, which is not seeded for each sample: results may differ between runs. "
                "Use a generator of numpy, random or torch, or rename the attribute",
                "rng_not_seeded",
                type=kind,
            )


def _rngs(data: Any) -> list[Any]:
    """Return the attribute `rng` of a dataset and of each dataset inside it, or None."""
    return [getattr(each, "rng", None) for each in datasets_of(data)]


def reseed(generators: Sequence[Any], number: int) -> None:
    """Seed these generators with `number`, `number + 1`, ..."""
    for place, generator in enumerate(generators):
        match generator:
            case torch.Generator():
                generator.manual_seed(number + place)
            case np.random.Generator():
                bits = generator.bit_generator
                bits.state = type(bits)(number + place).state
            case _:
                generator.seed((number + place) % 2**32)


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Use one PyTorch thread, and restore the random state and the number of threads at the end."""
    python, threads = random.getstate(), torch.get_num_threads()
    legacy = np.random.get_state()  # noqa: NPY002 - as above
    with torch.random.fork_rng(devices=[]):
        try:
            torch.set_num_threads(1)  # merges are short, and workers need the cores
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002 - as above
            torch.set_num_threads(threads)


@contextmanager
def seeded(number: int, generators: Sequence[Any] = ()) -> Iterator[None]:
    """Seed the global generators of torch (on the CPU), numpy and random, and these generators. Restore the global
    generators at the end."""
    before = [each.get() for each in GLOBAL.values()]
    try:
        for each in GLOBAL.values():
            each.seed(number)
        reseed(generators, number)
        yield
    finally:
        for each, state in zip(GLOBAL.values(), before, strict=True):
            each.set(state)


def seed_of(seed: int, task: Task) -> int:
    """Return the seed of a task, a hash of (seed, epoch, first position). On every worker, dropout is the same."""
    return number_of(seed, task.spans[0].epoch, task.spans[0].start)


def numbers_of(seed: int, *columns: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return a hash of the seed and the values of each row, from 0 to 2^32 - 1. The mixing function is that of
    SplitMix64 (Steele et al., OOPSLA 2014)."""
    mixed = np.full(len(columns[0]), seed, np.uint64)
    for column in columns:
        mixed = (mixed + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + column.astype(np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(32)).astype(np.uint32)


def number_of(*parts: int | str) -> int:
    """Return a hash of these parts, from 0 to 2^32 - 1."""
    text = ":".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
