"""Shared code of all parts: datasets of three shapes, batches, and P@1."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.report import Size
from oddlot.sparse.csr import Csr
from oddlot.sparse.datasets.generating import Shape, generate
from oddlot.sparse.datasets.metrics import precision
from oddlot.sparse.datasets.text_files import read_xmc, write_xmc
from oddlot.sparse.sampler import Refresh
from oddlot.sparse.topk import CALIBRATED

THREADS, HIDDEN, BATCH = 2, 128, 256
SHAPES = {
    "30k": Shape(50_000, 30_000),
    "200k": Shape(135_909, 200_000),
    "670k": Shape(135_909, 670_091),
}
SMALL = {name: Shape(1_000, 1_100 + 100 * number, 20.0) for number, name in enumerate(SHAPES)}
"""Shapes of the smoke form, under the same names. Some samplers need 1,000 outputs."""
TRAINING = 1_000
"""Batches of a short training. The cost of rare work is spread over them."""
TEST, HELD = 8_192, 10
"""Number of test points. One in `HELD` training points of a real dataset is held out, to choose settings."""
REAL = ("xmc_tate_subjects", "xmc_delicious")


@dataclass(frozen=True)
class Set:
    """Features and labels for training, for the choice of settings, and for tests."""

    x: Csr
    y: Csr
    x_held: Csr
    y_held: Csr
    x_test: Csr
    y_test: Csr

    def batches(self, examples: int, seed: int = 0) -> Iterator[tuple[Csr, Csr]]:
        """Yield batches with `examples` examples in total, reshuffled in each pass."""
        chance, done = np.random.default_rng(seed), 0
        while True:
            order = chance.permutation(len(self.x))
            for low in range(0, len(order) - BATCH + 1, BATCH):
                if done >= examples:
                    return
                done += BATCH
                yield self.x.rows(order[low : low + BATCH]), self.y.rows(order[low : low + BATCH])


def shape_of(size: Size, name: str) -> Shape:
    """Return the shape with this name."""
    return size.pick(SMALL, SHAPES, SHAPES)[name]


@cache
def generated(size: Size, shape: str, examples: int) -> Set:
    """Generate a dataset that resembles the public datasets."""
    tests = size.pick(CALIBRATED, TEST, TEST)
    counts = ((examples, 1), (tests, 3), (tests, 2))
    parts = (generate(count, shape_of(size, shape), stream) for count, stream in counts)
    return Set(*chain.from_iterable(parts))


def write_real(folder: Path) -> None:
    """Write small datasets that replace the real datasets."""
    for name in REAL:
        (folder / name).mkdir()
        for stream, (part, points) in enumerate({"train": 2 * BATCH, "test": 64}.items()):
            write_xmc(folder / name / f"{part}.txt.gz", *generate(points, SMALL["30k"], stream))


def real() -> Iterator[tuple[str, Set]]:
    """Yield the name and data of each real dataset in ODDLOT_DATA. A part of the training points is held out."""
    for name in REAL:
        folder = Path(os.environ.get("ODDLOT_DATA", "")) / name
        if not (folder / "train.txt.gz").is_file():
            print(f"{name}: ODDLOT_DATA names no folder with it, so it is left out")
            continue
        x, y = read_xmc(folder / "train.txt.gz")
        order = np.random.default_rng(0).permutation(len(x))
        held, rest = np.split(order, [len(order) // HELD])
        yield (
            name,
            Set(x.rows(rest), y.rows(rest), x.rows(held), y.rows(held), *read_xmc(folder / "test.txt.gz")),
        )


def right(best: NDArray[np.int64], y: Csr) -> float:
    """Return P@1: the share of points with their best label among their true labels."""
    return precision(best[:, None], y, 1)


def batches_for_each(rows: int, refresh: Refresh) -> float:
    """Return the number of training batches per refresh of a sampler's clusters or tables."""
    refresh = Refresh(refresh.every, refresh.slower)
    return TRAINING / sum(refresh.due(step, rows) for step in range(1, TRAINING + 1))


def begin(threads: int = THREADS) -> None:
    """Set the number of PyTorch's threads."""
    torch.set_num_threads(threads)
