"""The process's own sources of chance, which the user's code draws from: seeded for it, and put back afterwards."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_all(number: int, device: torch.device | None = None) -> None:
    """Seed torch (on the CPU and on `device`), numpy and random."""
    torch.default_generator.manual_seed(
        number
    )  # torch.manual_seed takes 0.1 ms for devices that are not there
    if device is not None and device.type == "cuda":
        torch.cuda.manual_seed(number)
    elif device is not None and device.type == "mps":
        torch.mps.manual_seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002 - what users' augmentations draw from
    random.seed(number)


@contextmanager
def kept_chance() -> Iterator[None]:
    """Leave the caller's chance and its number of PyTorch threads as they were; one thread meanwhile."""
    python, threads = random.getstate(), torch.get_num_threads()
    legacy = np.random.get_state()  # noqa: NPY002 - as above
    with torch.random.fork_rng(devices=[]):
        try:
            torch.set_num_threads(1)  # merges are short; the cores are the workers'
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002 - as above
            torch.set_num_threads(threads)
