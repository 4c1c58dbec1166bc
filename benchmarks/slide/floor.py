"""Time of each phase compared with its floor: the time of the same memory accesses alone."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Size, show
from benchmarks.slide.quality import FOUND
from benchmarks.slide.setting import BATCH, HIDDEN, batches_for_each, generated, shape_of
from benchmarks.slide.systems import Ours
from oddlot.sparse import Clusters, SampledLinear, SparseInputLinear, Uniform
from oddlot.sparse.kernels import input_layer, output_layer, row_groups
from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.prefetch import prefetch_row
from oddlot.sparse.kernels.row_operations import dot
from oddlot.sparse.kernels.views import row
from oddlot.sparse.sampler import Sampler
from oddlot.sparse.threads import Crew

WARM, BATCHES, ROUNDS = 60, 16, 7
ROW = 4 * HIDDEN
AHEADS = 2, 4, 8, 16
"""Prefetch distances in rows. The fastest one counts."""
PAIR_READ, PAIR_WRITTEN = 4 + 4 + 4 + 12, 12 + 12
"""Bytes per pair in grouping. Rows are read to count, to scatter and to count again. Pairs are written twice."""
LOGIT = 4 + 4
"""Bytes per pair in the softmax: its logit is read, and its gradient is written."""
TAKEN = 4 + 4 + 4
"""Bytes per pair in choosing: its row is written, and the mark of its owner is read and written."""
GROUPING = (row_groups.count_pairs, row_groups.scatter_pairs, row_groups.sort_pairs)
LAYERS = {"output": output_layer, "input": input_layer}
"""Modules with the kernels of a layer."""
Phase = tuple[float, float, float]
"""Bytes, seconds, and seconds of the same memory accesses alone, per batch. 0: no floor."""
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "clusters": Clusters,
    "uniform 300": lambda: Uniform(300),
    "uniform 1000": lambda: Uniform(1000),
}


@kernel
def read_rows(
    part: int,
    parts: int,
    ahead: int,
    rows: NDArray[Any],
    matrix: NDArray[Any],
    one: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """Compute one inner product with each of the rows, in their order."""
    for i in range(len(rows) * part // parts, len(rows) * (part + 1) // parts):
        prefetch_row(matrix, rows[min(i + ahead, len(rows) - 1)])
        out[i] = dot(row(matrix, rows[i]), one)


@kernel
def touch(numbers: NDArray[Any]) -> None:
    """Read and write all numbers."""
    for i in range(numbers.shape[0]):
        numbers[i] += np.float32(1)


@kernel
def update_rows(
    part: int,
    parts: int,
    ahead: int,
    rows: NDArray[Any],
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any],
) -> None:
    """Read and write each of the rows in the weights and both moments, in their order."""
    for i in range(len(rows) * part // parts, len(rows) * (part + 1) // parts):
        later = rows[min(i + ahead, len(rows) - 1)]
        prefetch_row(a, later)
        prefetch_row(b, later)
        prefetch_row(c, later)
        touch(row(a, rows[i]))
        touch(row(b, rows[i]))
        touch(row(c, rows[i]))


@kernel
def copy(part: int, parts: int, a: NDArray[Any], b: NDArray[Any]) -> None:
    """Copy `a` to `b` in order."""
    low, high = len(a) * part // parts, len(a) * (part + 1) // parts
    b[low:high] = a[low:high]


class Watched:
    """Context manager that measures the seconds of every kernel, and of given methods."""

    def __init__(self, batches: int) -> None:
        self.seconds, self.batches = dict[str, float](), batches

    def __enter__(self) -> Self:
        self.before = Crew.share

        def timed(crew: Crew, what: Any, *arguments: Any) -> None:
            began = time.perf_counter()
            self.before(crew, what, *arguments)
            name = _name(what)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

        Crew.share = timed  # type: ignore[method-assign,assignment]  # restored on exit
        return self

    def time(self, owner: object, name: str) -> None:
        """Measure a method as well, by its name."""
        before = getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            found = before(*arguments)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
            return found

        setattr(owner, name, timed)

    def __exit__(self, *_: object) -> None:
        Crew.share = self.before  # type: ignore[method-assign]

    def of(self, *what: Any) -> float:
        """Return the seconds per batch of kernels, and of methods by their name."""
        return sum(self.seconds[_name(one)] for one in what) / self.batches


def _name(what: Any) -> str:
    """Return the key of a kernel or of a method's name."""
    return what if isinstance(what, str) else f"{what.py_func.__module__}.{what.py_func.__name__}"


def measure(size: Size, shapes: list[str]) -> dict[str, float]:
    """Return the time of the output layer, forward and backward, as a multiple of its floor, and print all phases."""
    figures = dict[str, float]()
    for shape in shapes:
        rows = list[list[str]]()
        for name in list(SAMPLERS)[: size.pick(1, None, None)]:
            found = _phases(size, shape, SAMPLERS[name]())
            for phase, (bytes_moved, seconds, floor) in found.items():
                message = (
                    (f"{1000 * floor:.2f}", f"{bytes_moved / floor / 1e9:.1f}", f"{seconds / floor:.2f}")
                    if floor
                    else ("", "", "")
                )
                rows.append([name, phase, f"{bytes_moved / 1e6:.1f}", f"{1000 * seconds:.2f}", *message])
            if name == "clusters":
                own = [one for phase, one in found.items() if phase.startswith("output")]
                total = sum(one[1] for one in own) / sum(one[2] for one in own)
                figures[f"output_layer_floor_multiple_{shape}"] = total
        columns = [
            "",
            "phase",
            "MB a batch",
            "ms",
            "ms of its bytes alone",
            "GB/s of these",
            "times the floor",
        ]
        show(f"{shape_of(size, shape).labels:,} outputs, batch {BATCH}: bytes and floors", columns, rows)
    return figures


def _phases(size: Size, shape: str, sampler: Sampler) -> dict[str, Phase]:
    """Return all phases of a batch."""
    warm, batches = size.pick((2, 2), (WARM, BATCHES), (WARM, BATCHES))
    given = list(generated(size, shape, (warm + batches) * BATCH).batches((warm + batches) * BATCH))
    system = Ours(shape_of(size, shape).features, shape_of(size, shape).labels, FOUND["clusters"], sampler)
    for x, y in given[:warm]:
        system.step(x, y)
    if isinstance(sampler, Clusters):
        sampler.refresh.next = 0  # the next step rebuilds clusters with the label frequencies so far
        system.step(*given[warm])
    layers: dict[str, SampledLinear | SparseInputLinear] = {"output": system.output, "input": system.input}
    touched: dict[str, list[NDArray[np.int32]]] = {name: [] for name in layers}
    rows, pairs = dict.fromkeys(layers, 0.0), dict.fromkeys(layers, 0.0)
    with Watched(batches) as watched:
        watched.time(system.output.sampler, "choose")
        watched.time(system, "step")
        for x, y in given[warm:]:
            system.step(x, y)
            for name, of in (("output", system.output._free[0].pairs), ("input", system.input._free[0])):
                touched[name].append(of.rows)
                rows[name] += of.touched / batches
                pairs[name] += int(of.bucket_starts[-1]) / batches
    own = system.output.sampler
    making = _making(system, own) if isinstance(own, Clusters) else {}  # with the weights after training
    found = dict[str, Phase]()
    for name, layer in layers.items():
        found |= _layer(name, layer, rows[name], touched[name], watched)
    found |= _of_pairs(pairs["output"], pairs["output"] + pairs["input"], own, watched)
    rest = watched.of("step") - sum(phase[1] for phase in found.values())
    found["all else of a step"] = 0.0, rest, 0.0
    return found | making


def _of_pairs(of_output: float, every: float, own: Sampler, watched: Watched) -> dict[str, Phase]:
    """Return the phases with bytes that depend on the pairs of a batch and on the clusters."""
    moved = TAKEN * of_output
    if isinstance(own, Clusters):
        moved += own.clustering.product.matrix.nbytes + 2.0 * 4 * BATCH * len(own.clustering.means)
    return {
        "grouping": _in_order((PAIR_READ + PAIR_WRITTEN) * every, watched.of(*GROUPING)),
        "softmax": _in_order(LOGIT * of_output, watched.of(output_layer.softmax)),
        "choosing": _in_order(moved, watched.of("choose")),
    }


def _making(system: Ours, own: Clusters) -> dict[str, Phase]:
    """Return the phase of rebuilding clusters, spread over the batches of a training.

    Rows are read for their lengths. In each round they are read, written next to the rows of their group, and read for
    the average.
    """
    layer = system.output
    steps = batches_for_each(layer.out_features, own.refresh)
    began = time.perf_counter()
    own.clustering.update(Crew(), layer.weight.detach().numpy(), layer.bias.detach().numpy(), layer.step)
    seconds = time.perf_counter() - began
    moved = layer.weight.nbytes * (1 + 3 * own.clustering.rounds)
    return {"making clusters": _in_order(moved / steps, seconds / steps)}


def _in_order(moved: float, seconds: float) -> Phase:
    """Return a phase with sequential bytes. Its floor is the time of copying half of them."""
    source = np.ones(int(moved) // 2 // 4, np.float32)
    copied = _median(lambda other: Crew().share(copy, source, other), [np.empty_like(source)] * ROUNDS)
    return moved, seconds, copied


def _layer(
    name: str,
    layer: SampledLinear | SparseInputLinear,
    counted: float,
    touched: list[NDArray[np.int32]],
    watched: Watched,
) -> dict[str, Phase]:
    """Return the forward and backward phases of a layer. `counted`: rows per batch, as counted by the kernels."""
    crew, one, weight = Crew(), np.ones(HIDDEN, np.float32), layer.weight.detach().numpy()
    first, second = (kept.view(np.float32) for kept in (layer._state.first, layer._state.second))
    out = np.empty(len(weight), np.float32)
    reading = min(_median(partial(_read, crew, ahead, weight, one, out), touched) for ahead in AHEADS)
    writing = min(_median(partial(_update, crew, ahead, weight, first, second), touched) for ahead in AHEADS)
    both = 2 * (ROW + first[0].nbytes + second[0].nbytes)
    return {
        f"{name} forward": (counted * ROW, watched.of(LAYERS[name].forward), reading),
        f"{name} backward": (counted * both, watched.of(LAYERS[name].backward), writing),
    }


def _read(
    crew: Crew,
    ahead: int,
    weight: NDArray[Any],
    one: NDArray[Any],
    out: NDArray[Any],
    rows: NDArray[Any],
) -> None:
    crew.share(read_rows, ahead, rows, weight, one, out)


def _update(
    crew: Crew,
    ahead: int,
    weight: NDArray[Any],
    first: NDArray[Any],
    second: NDArray[Any],
    rows: NDArray[Any],
) -> None:
    crew.share(update_rows, ahead, rows, weight, first, second)


def _median(work: Callable[[NDArray[Any]], None], given: Sequence[NDArray[Any]]) -> float:
    """Return the median seconds of `work` for the rows of one batch. The first call is not counted."""
    seconds = list[float]()
    for rows in given[:ROUNDS]:
        began = time.perf_counter()
        work(rows)
        seconds.append(time.perf_counter() - began)
    return median(seconds[1:])
