"""What every part has in common: sets of three shapes, batches, and P@1."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from oddlot.sparse.xmc.csr import Csr
from oddlot.sparse.xmc.generating import Shape, generate
from oddlot.sparse.xmc.reading import read_xmc

THREADS, HIDDEN, BATCH = 2, 128, 256
SHAPES = {
    "30k": Shape(50_000, 30_000),
    "200k": Shape(135_909, 200_000),
    "670k": Shape(135_909, 670_091),
}
TEST = 8_192


@dataclass(frozen=True)
class Set:
    """Features and labels, to train on and to test."""

    x: Csr
    y: Csr
    x_test: Csr
    y_test: Csr

    def batches(self, examples: int, seed: int = 0) -> Iterator[tuple[Csr, Csr]]:
        """So many examples, shuffled anew in each pass."""
        chance, done = np.random.default_rng(seed), 0
        while True:
            order = chance.permutation(len(self.x))
            for low in range(0, len(order) - BATCH + 1, BATCH):
                if done >= examples:
                    return
                done += BATCH
                yield self.x.rows(order[low : low + BATCH]), self.y.rows(order[low : low + BATCH])


@cache
def generated(shape: str, examples: int) -> Set:
    """A set like the published ones."""
    return Set(*generate(examples, SHAPES[shape], 1), *generate(TEST, SHAPES[shape], 2))


@cache
def real(name: str) -> Set | None:
    """A set of the files in ODDLOT_DATA; None where it is not there."""
    folder = Path(os.environ.get("ODDLOT_DATA", "")) / name
    if not (folder / "train.txt.gz").is_file():
        print(f"{name}: ODDLOT_DATA names no folder with it, so it is left out")
        return None
    return Set(*read_xmc(folder / "train.txt.gz"), *read_xmc(folder / "test.txt.gz"))


def right(best: NDArray[np.int64], y: Csr) -> float:
    """P@1: the share of points whose best label is one of theirs."""
    truth = np.repeat(np.arange(len(y)), np.diff(y.indptr)) * y.shape[1] + y.indices
    return float(np.isin(np.arange(len(y)) * y.shape[1] + best, truth).mean())


def begin() -> None:
    """The same threads for all."""
    torch.set_num_threads(THREADS)
