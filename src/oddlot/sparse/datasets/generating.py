"""Sets like the published ones, of any shape: power-law labels that occur together, features that tell of labels."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.csr import Csr
from oddlot.sparse.errors import coded
from oddlot.sparse.memory import check_memory
from oddlot.sparse.validation import warn

CLUSTER = 16
"""labels that occur together"""
OWN, COMMON = 16, 14
"""features of a label, and of a cluster"""
SHOWN = 8, 2
"""of these, so many for each label of a point with as many features and labels as usual"""
NOISE, MORE = 0.2, 1.28
"""so much noise, and times as many labels after the first, more than is wanted: some are there already"""
NEAR, PILOT, TRIES = 0.05, 1_000, 12
"""how near to the wanted numbers so many points have to come, and tries for that"""
BLOCK = 16_384
BYTES_OF_A_LABEL = 40
"""of popularities and ranks, while they are computed"""
MAX_DRAWN, BYTES_OF_A_DRAW = 1_000, 90
"""labels that are drawn for a point, of which some are there already; and what each takes meanwhile"""
BYTES_OF_A_NUMBER = 16
"""place and value, in blocks and joined"""


@dataclass(frozen=True)
class Shape:
    """What a set is like; by default as s30k of the trial."""

    features: int = 50_000
    labels: int = 30_000
    nonzeros: float = 75.0
    labels_each: float = 5.45
    seed: int = 0


def generate(examples: int, shape: Shape, stream: int = 0) -> tuple[Csr, Csr]:
    """Features (L2-normalised rows) and labels of so many examples; other ones for each `stream`.

    MemoryError: too many labels or examples for this machine. ValueError: nearly all labels for each example. A warning
    says where numbers on average come nowhere near to those that are wanted.
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
    """The noise, as a share of the features, and the labels after the first to draw, with which points have nearly as
    many of both as are wanted."""
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
            told = f"{each:g} labels of {of:,} for each point are too many, as most labels are rare"
            raise coded(ValueError(told), "too_many_labels_each", labels_each=each, labels=of)
    else:
        has = f"{features * shape.nonzeros:.1f} features and {labels * shape.labels_each:.1f} labels"
        told = f"points have {has} on average, where {shape.nonzeros:g} and {shape.labels_each:g} are wanted"
        warn(told, "averages_missed", nonzeros=shape.nonzeros, labels_each=shape.labels_each)
    return noise, more


def _block(
    count: int, shape: Shape, chance: np.random.Generator, noise: float, more_labels: float
) -> tuple[Csr, Csr]:
    y = _labels(count, shape, chance, more_labels)
    return _features(y, shape, chance, noise), y


def _labels(count: int, shape: Shape, chance: np.random.Generator, more: float) -> Csr:
    """A popular label for each point, and more of its cluster or other popular ones."""
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
    """Some of the features of each point's labels, of their clusters, and noise; rows of length 1."""
    count, usual = len(y), Shape()
    share = shape.nonzeros / usual.nonzeros * usual.labels_each / shape.labels_each
    of_label, of_cluster = (min(shown, round(share * shown)) for shown in SHOWN)
    labels, label_at = _repeated(y, max(1, of_label))
    own = _hashed(labels * OWN + chance.integers(0, OWN, len(labels)), shape.features, shape.seed)
    labels, cluster_at = _repeated(y, of_cluster)
    common = labels // CLUSTER * COMMON + chance.integers(0, COMMON, len(labels))
    common = _hashed(common, shape.features, shape.seed + 1)
    told_at = np.concatenate([label_at, cluster_at])
    lacks = np.maximum(0, shape.nonzeros - np.bincount(told_at, minlength=count))
    noise_at = np.repeat(np.arange(count), chance.poisson(np.maximum(0, lacks + noise * shape.nonzeros)))
    noisy = (shape.features ** chance.random(len(noise_at)) - 1).astype(np.int64)
    at, features = np.concatenate([told_at, noise_at]), np.concatenate([own, common, noisy])
    values = np.exp(0.5 * chance.standard_normal(len(at))).astype(np.float32)
    x = _csr(at, features, values, (count, shape.features))
    squares = np.bincount(np.repeat(np.arange(count), np.diff(x.indptr)), x.data**2, count)
    lengths = np.repeat(np.sqrt(squares), np.diff(x.indptr)).astype(np.float32)
    return Csr(x.indptr, x.indices, x.data / lengths, x.shape)


def _repeated(y: Csr, times: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every label so many times, and whose it is."""
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
    """Of several values in one place the first counts."""
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
