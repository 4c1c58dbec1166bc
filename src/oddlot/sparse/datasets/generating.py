"""Synthetic datasets of any size: correlated labels with a power-law frequency, and features that depend on labels."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.csr import Csr
from oddlot.sparse.errors import check_memory, coded
from oddlot.sparse.validation import warn

CLUSTER = 16
"""Number of labels in a cluster. They often occur together."""
OWN, COMMON = 16, 14
"""Number of features of a label, and of a cluster."""
SHOWN = 8, 2
"""Numbers of these features that a point has for each of its labels, at the default numbers of features and labels."""
NOISE, MORE = 0.2, 1.28
"""Initial share of noise features, and initial factor of further labels. The factor allows for duplicates."""
NEAR, PILOT, TRIES = 0.05, 1_000, 12
"""Tolerance of the means, number of points for measuring them, and number of tries."""
BLOCK = 16_384
BYTES_OF_A_LABEL = 40
"""Temporary memory for a label."""
MAX_DRAWN, BYTES_OF_A_DRAW = 1_000, 90
"""Largest number of labels that are drawn for a point, and temporary memory for each."""
BYTES_OF_A_NUMBER = 16
"""Memory for an entry."""


@dataclass(frozen=True)
class Shape:
    """The size of a synthetic dataset."""

    features: int = 50_000
    """Number of features."""
    labels: int = 30_000
    """Number of labels."""
    nonzeros: float = 75.0
    """Mean number of features of a point."""
    labels_each: float = 5.45
    """Mean number of labels of a point."""
    seed: int = 0
    """Random seed."""


def generate(examples: int, shape: Shape, stream: int = 0) -> tuple[Csr, Csr]:
    """Return features (L2-normalized rows) and labels of `examples` points. Each `stream` has different points.

    Warn if the means differ much from the requested means. Raise MemoryError if there is not enough memory, and
    ValueError if a point would need nearly all labels.
    """
    check_memory(BYTES_OF_A_LABEL * shape.labels, f"a set of {shape.labels:,} labels")
    numbers = shape.nonzeros + shape.labels_each
    check_memory(int(BYTES_OF_A_NUMBER * numbers * examples), f"a set of {examples:,} points")
    drawn = _drawn_for(shape)
    check_memory(int(BYTES_OF_A_DRAW * drawn[1] * min(BLOCK, examples)), f"a set of {examples:,} points")
    blocks = [
        _block(min(BLOCK, examples - low), shape, np.random.default_rng([shape.seed, stream, low]), *drawn)
        for low in range(0, examples, BLOCK)
    ]
    return _joined([x for x, _ in blocks], shape.features), _joined([y for _, y in blocks], shape.labels)


def _drawn_for(shape: Shape) -> tuple[float, float]:
    """Return the share of noise features, and the number of further labels to draw, that give the requested means."""
    noise, more = NOISE, MORE * (shape.labels_each - 1)
    for _ in range(TRIES):
        x, y = _block(PILOT, shape, np.random.default_rng([shape.seed, 2**31]), noise, more)
        features, labels = x.indptr[-1] / PILOT / shape.nonzeros, y.indptr[-1] / PILOT / shape.labels_each
        if max(abs(1 - features), abs(1 - labels)) <= NEAR:
            break
        noise += 0.0 if abs(1 - features) <= NEAR else 1 - features
        more /= 1.0 if abs(1 - labels) <= NEAR else labels
        if more > MAX_DRAWN:
            each, of = shape.labels_each, shape.labels
            message = (
                f"{each:g} labels per point are too many for {of:,} labels, because most labels are rare"
            )
            raise coded(ValueError(message), "too_many_labels_each", labels_each=each, labels=of)
    else:
        has = f"{features * shape.nonzeros:.1f} features and {labels * shape.labels_each:.1f} labels"
        message = (
            f"points have {has} on average, but {shape.nonzeros:g} and {shape.labels_each:g} were requested"
        )
        warn(message, "averages_missed", nonzeros=shape.nonzeros, labels_each=shape.labels_each)
    return noise, more


def _block(
    count: int, shape: Shape, chance: np.random.Generator, noise: float, more_labels: float
) -> tuple[Csr, Csr]:
    y = _labels(count, shape, chance, more_labels)
    return _features(y, shape, chance, noise), y


def _labels(count: int, shape: Shape, chance: np.random.Generator, more: float) -> Csr:
    """Draw a frequent label for each point, and further labels of its cluster or other frequent labels."""
    popularity = np.cumsum((np.arange(shape.labels) + 10.0) ** -0.8)
    rank = np.random.default_rng([shape.seed, 1]).permutation(shape.labels)

    def popular(size: int) -> NDArray[np.int64]:
        drawn: NDArray[np.int64] = rank[np.searchsorted(popularity, chance.random(size) * popularity[-1])]
        return drawn

    first = popular(count)
    of = np.repeat(np.arange(count), chance.poisson(more, count))
    near = first[of] // CLUSTER * CLUSTER + (CLUSTER * chance.random(len(of)) ** 2).astype(np.int64)
    other = np.where(chance.random(len(of)) < 0.85, np.minimum(near, shape.labels - 1), popular(len(of)))
    rows, labels = np.concatenate([np.arange(count), of]), np.concatenate([first, other])
    return _csr(rows, labels, np.ones(len(rows), np.float32), (count, shape.labels))


def _features(y: Csr, shape: Shape, chance: np.random.Generator, noise: float) -> Csr:
    """Draw features of each point's labels and of their clusters, and noise. Rows have length 1."""
    count, usual = len(y), Shape()
    share = shape.nonzeros / usual.nonzeros * usual.labels_each / shape.labels_each
    of_label, of_cluster = (min(shown, round(share * shown)) for shown in SHOWN)
    labels, label_at = _repeated(y, max(1, of_label))
    own = _hashed(labels * OWN + chance.integers(0, OWN, len(labels)), shape.features, shape.seed)
    labels, cluster_at = _repeated(y, of_cluster)
    common = labels // CLUSTER * COMMON + chance.integers(0, COMMON, len(labels))
    common = _hashed(common, shape.features, shape.seed + 1)
    reported_at = np.concatenate([label_at, cluster_at])
    lacks = np.maximum(0, shape.nonzeros - np.bincount(reported_at, minlength=count))
    noise_at = np.repeat(np.arange(count), chance.poisson(np.maximum(0, lacks + noise * shape.nonzeros)))
    noisy = (shape.features ** chance.random(len(noise_at)) - 1).astype(np.int64)
    at, features = np.concatenate([reported_at, noise_at]), np.concatenate([own, common, noisy])
    values = np.exp(0.5 * chance.standard_normal(len(at))).astype(np.float32)
    x = _csr(at, features, values, (count, shape.features))
    squares = np.bincount(np.repeat(np.arange(count), np.diff(x.indptr)), x.data**2, count)
    lengths = np.repeat(np.sqrt(squares), np.diff(x.indptr)).astype(np.float32)
    return Csr(x.indptr, x.indices, x.data / lengths, x.shape)


def _repeated(y: Csr, times: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return every label repeated `times` times, with its point."""
    points = np.repeat(np.arange(len(y)), np.diff(y.indptr))
    return np.repeat(y.indices.astype(np.int64), times), np.repeat(points, times)


def _hashed(keys: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    x = keys.astype(np.uint64) + np.uint64((seed * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) % np.uint64(count)).astype(np.int64)


def _csr(
    rows: NDArray[np.int64], columns: NDArray[np.int64], values: NDArray[np.float32], shape: tuple[int, int]
) -> Csr:
    """Return a CSR matrix. Of several values at the same position, the first is kept."""
    keys, at = np.unique(rows * shape[1] + columns, return_index=True)
    counts = np.bincount(keys // shape[1], minlength=shape[0])
    return Csr(
        np.concatenate([[0], np.cumsum(counts)]), (keys % shape[1]).astype(np.int32), values[at], shape
    )


def _joined(parts: list[Csr], columns: int) -> Csr:
    counts = np.concatenate([np.diff(part.indptr) for part in parts])
    return Csr(
        np.concatenate([[0], np.cumsum(counts)]),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.data for part in parts]),
        (len(counts), columns),
    )
