"""Best labels of many examples and of one: exact scoring of all outputs by PyTorch, compared with clusters."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.report import Measured, Size, median_and_range, show
from benchmarks.slide.setting import BATCH, generated, right, shape_of
from oddlot.sparse import SlideClassifier
from oddlot.sparse.csr import Csr
from oddlot.sparse.topk import CALIBRATED, Index, exact_topk

SET, PASSES, ROUNDS = {"30k": 64_000, "670k": 256_000}, {"30k": 2, "670k": 1}, {"30k": 5, "670k": 2}
"""Training examples, passes over them, and rounds of measurements. With 670,091 outputs a round takes minutes."""
PROBES, RECALLS = (2, 4, 8, 16, 32, 64, 128, 256), (0.8, 0.85, 0.86, 0.87, 0.88, 0.89, 0.9, 0.95, 0.99)
ALL = "all, as fast as was found"
SHARE = 0.95
"""Share of the exact P@1 that must be kept."""
ONES = 50
Ask = Callable[[Csr], NDArray[np.int64]]


class Asked(NamedTuple):
    """Best labels, seconds per example of each round in batches, and median seconds of single examples."""

    best: NDArray[np.int64]
    seconds: list[float]
    alone: float


def measure(size: Size, shapes: list[str]) -> dict[str, Measured]:
    """Return the speedup over exact scoring, and the share of its P@1, with the least recall that keeps `SHARE` of it.

    The recall is chosen on held-out points.
    """
    figures = dict[str, Measured]()
    for shape in (one for one in shapes if one in SET):
        data = generated(size, shape, size.pick(2 * BATCH, SET[shape], SET[shape]))
        model = SlideClassifier(epochs=PASSES[shape]).fit(data.x, data.y)
        _tell_making(model, data.x_held)
        ways = dict(_ways(model))
        held = {name: right(_best(ask, data.x_held), data.y_held) for name, ask in ways.items()}
        rounds = size.pick(1, ROUNDS[shape], ROUNDS[shape])
        found = _asked(ways, data.x_test, rounds, size.pick(2, ONES, ONES))
        dense = found[ALL]
        p1, rows, ratios = right(dense.best, data.y_test), list[list[str]](), dict[str, list[float]]()
        for name, one in found.items():
            share, recall = right(one.best, data.y_test) / p1, float((one.best == dense.best).mean())
            ratios[name] = [their / own for own, their in zip(one.seconds, dense.seconds, strict=True)]
            rows.append([
                name, f"{1 / median(one.seconds):,.0f}", median_and_range(ratios[name], 1), f"{1000 * one.alone:.2f}",
                f"{share * p1:.4f}", f"{share:.3f}", f"{recall:.3f}",
            ])  # fmt: skip
        columns = ["scored", "examples/s", "times", "ms for one", "P@1", "of exact", "recall of the best"]
        title = (
            f"{shape_of(size, shape).labels:,} outputs, from features to the best label, batches of {BATCH}"
        )
        show(f"{title}, {rounds} rounds in turn", columns, rows)
        enough = (f"recall={recall}" for recall in RECALLS)
        chosen = next(one for one in (*enough, "exact") if held[one] >= SHARE * held[ALL])
        print(f"the least recall with {SHARE} of the exact P@1 on other points: {chosen}", flush=True)
        figures |= {
            f"inference_speedup_{shape}": ratios[chosen],
            f"inference_p1_share_{shape}": right(found[chosen].best, data.y_test) / p1,
        }
    return figures


def _tell_making(model: SlideClassifier, x: Csr) -> None:
    """Print the one-time cost of building clusters and measuring their recall, without compilation."""
    few = np.random.default_rng(0).standard_normal((CALIBRATED, 16)).astype(np.float32)
    Index(few, np.zeros(CALIBRATED, np.float32)).topk(few, 1, 1)
    asked = x.rows(np.arange(CALIBRATED))
    first, again = (_seconds(partial(model.predict, exact=False), [asked]) for _ in range(2))
    print(f"once: clusters made and counted for a recall in {first - again:.2f} s", flush=True)


def _ways(model: SlideClassifier) -> Iterator[tuple[str, Ask]]:
    """Yield exact scoring by PyTorch, `predict` for each recall, and search in a number of clusters."""
    output = model.output

    def score_all(x: Csr) -> NDArray[np.int64]:
        # the fastest exact method found: products of 16,384 outputs, and NumPy's argmax of each
        best: NDArray[np.int64] = exact_topk(model._hidden(x), output.weight, output.bias, 1)[1].numpy()[:, 0]
        return best

    def of_clusters(probes: int, x: Csr) -> NDArray[np.int64]:
        return index.topk(model._hidden(x).numpy(), 1, probes)[1][:, 0]

    yield ALL, score_all
    yield "exact", model.predict
    for recall in RECALLS:
        yield f"recall={recall}", partial(model.predict, exact=False, recall=recall)
    index = Index(output.weight.detach().numpy(), output.bias.detach().numpy())
    for probes in PROBES:
        yield f"{probes} clusters", partial(of_clusters, probes)


def _best(ask: Ask, x: Csr) -> NDArray[np.int64]:
    with torch.no_grad():
        return np.concatenate([ask(batch) for batch in _batches(x)])


def _asked(ways: dict[str, Ask], x: Csr, rounds: int, ones: int) -> dict[str, Asked]:
    """Measure all methods in turn. A first call builds the clusters and is not counted."""
    best = {name: _best(ask, x) for name, ask in ways.items()}
    batches, seconds = _batches(x), {name: list[float]() for name in ways}
    with torch.no_grad():
        for _ in range(rounds):
            for name, ask in ways.items():
                seconds[name].append(_seconds(ask, batches) / len(x))
        rows = [x.rows(np.array([row])) for row in range(ones)]
        alone = {name: median(_seconds(ask, [row]) for row in rows) for name, ask in ways.items()}
    return {name: Asked(best[name], seconds[name], alone[name]) for name in ways}


def _batches(x: Csr) -> list[Csr]:
    return [x.rows(np.arange(low, min(low + BATCH, len(x)))) for low in range(0, len(x), BATCH)]


def _seconds(ask: Ask, batches: list[Csr]) -> float:
    began = time.perf_counter()
    for batch in batches:
        ask(batch)
    return time.perf_counter() - began
