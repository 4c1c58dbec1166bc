"""The output layer's time against its floor: the bytes of its rows, over the bandwidth that such rows have."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import show
from benchmarks.slide.setting import BATCH, HIDDEN, SHAPES, generated
from benchmarks.slide.systems import Ours, Tuned
from oddlot.sparse import Clusters, Uniform
from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.prefetch import prefetch_row
from oddlot.sparse.kernels.rows import dot
from oddlot.sparse.sampler import Sampler
from oddlot.sparse.threads import Crew

WARM, BATCHES, ROUNDS = 4, 16, 7
ROW = 4 * HIDDEN
PHASES = {"forward": "output.forward", "backward": "output.backward"}
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "clusters": Clusters,
    "uniform 300": lambda: Uniform(300),
    "uniform 1000": lambda: Uniform(1000),
}


@kernel
def read_rows(
    part: int, parts: int, rows: NDArray[Any], matrix: NDArray[Any], one: NDArray[Any], out: NDArray[Any]
) -> None:
    """The same rows in the same order, and no more than an inner product with each."""
    for i in range(len(rows) * part // parts, len(rows) * (part + 1) // parts):
        prefetch_row(matrix[rows[min(i + 4, len(rows) - 1)]])
        out[i] = dot(matrix[rows[i]], one)


@kernel
def touch(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> None:
    """Read and write three rows."""
    for i in range(a.shape[0]):
        b[i] += a[i]
        c[i] += b[i]
        a[i] += c[i]


@kernel
def update_rows(
    part: int, parts: int, rows: NDArray[Any], a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]
) -> None:
    """The same rows of weights and both moments, read and written."""
    for i in range(len(rows) * part // parts, len(rows) * (part + 1) // parts):
        later = rows[min(i + 4, len(rows) - 1)]
        prefetch_row(a[later])
        prefetch_row(b[later])
        prefetch_row(c[later])
        touch(a[rows[i]], b[rows[i]], c[rows[i]])


class Watched:
    """The seconds of every kernel while inside, by its module and name."""

    def __init__(self) -> None:
        self.seconds = dict[str, float]()

    def __enter__(self) -> Self:
        self.before = Crew.__call__

        def timed(crew: Crew, what: Any, *arguments: Any) -> None:
            began = time.perf_counter()
            self.before(crew, what, *arguments)
            name = f"{what.py_func.__module__.rpartition('.')[2]}.{what.py_func.__name__}"
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

        Crew.__call__ = timed  # type: ignore[method-assign,assignment]  # for a while
        return self

    def __exit__(self, *_: object) -> None:
        Crew.__call__ = self.before  # type: ignore[method-assign]


def measure(shapes: list[str]) -> dict[str, float]:
    """How many times its floor the output layer takes, forward and backward together."""
    figures = dict[str, float]()
    for shape in shapes:
        rows = list[list[str]]()
        for name, make in SAMPLERS.items():
            found = _phases(shape, make())
            for phase, (bytes_moved, seconds, floor) in found.items():
                rows.append([
                    name, phase, f"{bytes_moved / 1e6:.0f}", f"{1000 * seconds:.2f}", f"{1000 * floor:.2f}",
                    f"{bytes_moved / floor / 1e9:.1f}", f"{seconds / floor:.2f}",
                ])  # fmt: skip
            if name == "clusters":
                total = sum(one[1] for one in found.values()) / sum(one[2] for one in found.values())
                figures[f"output_layer_floor_multiple_{shape}"] = total
        columns = [
            "",
            "phase",
            "MB a batch",
            "ms",
            "ms at that bandwidth",
            "GB/s of such rows",
            "times the floor",
        ]
        show(f"{SHAPES[shape].labels:,} outputs, batch {BATCH}: the rows of the output layer", columns, rows)
    return figures


def _phases(shape: str, sampler: Sampler) -> dict[str, tuple[float, float, float]]:
    """Bytes, seconds and the seconds of the same bytes alone, of one batch."""
    data = generated(shape, (WARM + BATCHES) * BATCH)
    given = list(data.batches((WARM + BATCHES) * BATCH))
    system = Ours(SHAPES[shape].features, SHAPES[shape].labels, Tuned(), sampler)
    for x, y in given[:WARM]:
        system.step(x, y)
    touched = list[NDArray[np.int32]]()
    with Watched() as watched:
        for x, y in given[WARM:]:
            system.step(x, y)
            pairs = system.output._free[0].pairs
            touched.append(np.unique(pairs.by_row[0][: pairs.bucket_starts[-1]]))
    unique = float(np.mean([len(one) for one in touched]))
    state = system.output._state
    weight, bias = system.output._plain()
    crew, one = Crew(), np.ones(HIDDEN, np.float32)
    out = np.empty(len(bias), np.float32)
    reading = _median(lambda rows: crew.share(read_rows, rows, weight, one, out), touched)
    writing = _median(lambda rows: crew.share(update_rows, rows, weight, state.first, state.second), touched)
    return {
        "forward": (unique * ROW, watched.seconds[PHASES["forward"]] / BATCHES, reading),
        "backward": (unique * ROW * 6, watched.seconds[PHASES["backward"]] / BATCHES, writing),
    }


def _median(work: Callable[[NDArray[np.int32]], None], given: list[NDArray[np.int32]]) -> float:
    """Seconds for the rows of one batch."""
    seconds = list[float]()
    for rows in given[:ROUNDS]:
        began = time.perf_counter()
        work(rows)
        seconds.append(time.perf_counter() - began)
    return median(seconds[1:])
