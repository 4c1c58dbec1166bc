"""Complete runs: training with learning rates that decay to zero, P@1 at the end, and the best of some settings."""

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.slide.setting import BATCH, Set, right
from benchmarks.slide.systems import Ours, System, Tuned
from oddlot.sparse.csr import Csr
from oddlot.sparse.sampler import Sampler

TEST_BATCH = 256
Made = Callable[[int, int, Tuned, int], System]
"""Constructor of a system from the numbers of features and labels, the settings and a seed."""


class Point(NamedTuple):
    """End of a run."""

    examples: int
    seconds: float
    """Seconds of its steps."""
    p1: float
    """P@1 on the test points."""
    held: float = 0.0
    """P@1 on the points that choose settings."""
    active: float = 0.0
    """Rows per example in the last batch, or 0 if unknown."""


def ours(sampler: Callable[[], Sampler], **how: float | str) -> Made:
    """Return a constructor of oddlot's layers with a sampler."""
    return lambda features, labels, tuned, seed: Ours(features, labels, tuned, sampler(), seed=seed, **how)  # type: ignore[arg-type]  # the keyword arguments of `Ours`


def trained(make: Made, tuned: Tuned, data: Set, examples: int, seed: int = 0) -> Point:
    """Train a new system, and return its end point. `seed` is for weights, random rows and the order of examples."""
    system = make(data.x.shape[1], data.y.shape[1], tuned, seed)
    seconds = train(system, data, examples, seed)
    tests = (data.x_test, data.y_test), (data.x_held, data.y_held)
    p1, held = (precision(system, x, y) for x, y in tests)
    return Point(examples, seconds, p1, held, system.output.active_rows if isinstance(system, Ours) else 0.0)


def best_of(settings: Iterable[Tuned], make: Made, data: Set, examples: int) -> tuple[Tuned, Point]:
    """Return the setting with the best P@1 on held-out points, and its end point."""
    tried = {tuned: trained(make, tuned, data, examples) for tuned in settings}
    best = max(tried, key=lambda tuned: tried[tuned].held)
    return best, tried[best]


def train(system: System, data: Set, examples: int, seed: int = 0) -> float:
    """Train with learning rates that decay linearly to zero. Return the seconds of the steps."""
    steps, seconds = examples // BATCH, 0.0
    for number, (x, y) in enumerate(data.batches(steps * BATCH, seed)):
        began = time.perf_counter()
        system.fall(1 - number / steps)
        system.step(x, y)
        seconds += time.perf_counter() - began
    return seconds


def precision(system: System, x: Csr, y: Csr) -> float:
    """Return P@1 with all outputs scored."""
    best = list[NDArray[np.int64]]()
    with torch.no_grad():
        for low in range(0, len(x), TEST_BATCH):
            part = x.rows(np.arange(low, min(low + TEST_BATCH, len(x))))
            best.append(system.scores(part).argmax(1).numpy())
    return right(np.concatenate(best), y)
