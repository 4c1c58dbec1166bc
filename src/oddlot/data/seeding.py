"""Seeding of the random generators in the user's code: global generators, and generators in datasets."""

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
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
                f"the dataset's rng is a {kind}, which is not seeded for each task: results may differ between runs. "
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


def seed_of(seed: int, task: Task) -> int:
    """Return the seed of a task, a hash of (seed, epoch, first position). On every worker, dropout is the same."""
    text = f"{seed}:{task.spans[0].epoch}:{task.spans[0].start}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
