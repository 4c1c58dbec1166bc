"""How good the best labels of points are: the metrics of the Extreme Classification Repository."""

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.csr import Csr

A, B = 0.55, 1.5
"""of the propensities, as Jain et al. fitted them; the repository has others for its Wikipedia and Amazon sets"""


def hits(best: NDArray[np.integer], labels: Csr) -> NDArray[np.bool_]:
    """Which of the labels `best[i]`, the best first, are among those of point i: [points, k]. -1 stands for none."""
    points = np.arange(len(labels), dtype=np.int64)
    width = labels.shape[1]
    truth = np.repeat(points, np.diff(labels.indptr)) * width + labels.indices
    return np.isin(points[:, None] * width + best, truth) & (best >= 0)


def precision(best: NDArray[np.integer], labels: Csr, k: int) -> float:
    """P@k: the share of the k best labels that are right, averaged over points. ValueError: fewer than k were given."""
    _check(best, k)
    return float(hits(best[:, :k], labels).mean()) if len(labels) else 0.0


def ndcg(best: NDArray[np.integer], labels: Csr, k: int) -> float:
    """nDCG@k: a right label at place j counts 1 / log2(j + 1), over what the best order of all would have."""
    _check(best, k)
    gains = 1 / np.log2(np.arange(2, k + 2))
    rows = np.repeat(np.arange(len(labels), dtype=np.int64), np.diff(labels.indptr))
    distinct = np.unique(rows * labels.shape[1] + labels.indices) // max(1, labels.shape[1])
    counts = np.bincount(distinct, minlength=len(labels))  # a label that stands there twice is one
    most = np.concatenate([[0.0], np.cumsum(gains)])[np.minimum(counts, k)]
    some = most > 0
    return float(((hits(best[:, :k], labels) @ gains)[some] / most[some]).mean()) if some.any() else 0.0


def propensities(train: Csr, a: float = A, b: float = B) -> NDArray[np.float64]:
    """How likely it is that a label is noted where it is right, from how often it occurs in training.

    Jain, Prabhu, Varma, "Extreme multi-label loss functions" (KDD 2016), section 4: 1 / (1 + C (N_l + B) ** -A) with
    C = (log N - 1) (B + 1) ** A.
    """
    counts = np.bincount(train.indices, minlength=train.shape[1])
    scale = (np.log(max(np.e, len(train))) - 1) * (b + 1) ** a
    propensity: NDArray[np.float64] = 1 / (1 + scale * (counts + b) ** -a)
    return propensity


def propensity_precision(
    best: NDArray[np.integer], labels: Csr, k: int, propensity: NDArray[np.float64]
) -> float:
    """PSP@k: each right label counts 1 / propensity, over what the best choice of k labels would have."""
    _check(best, k)
    gained = (hits(best[:, :k], labels) / propensity[best[:, :k]]).sum()
    rows = np.repeat(np.arange(len(labels), dtype=np.int64), np.diff(labels.indptr))
    distinct = np.unique(rows * labels.shape[1] + labels.indices)  # a label that stands there twice is one
    rows, worth = distinct // max(1, labels.shape[1]), 1 / propensity[distinct % max(1, labels.shape[1])]
    order = np.lexsort((-worth, rows))
    place = np.arange(len(rows)) - np.searchsorted(rows, rows)
    possible = worth[order][place < k].sum()
    return float(gained / possible) if possible else 0.0


def _check(best: NDArray[np.integer], k: int) -> None:
    if not 1 <= k <= best.shape[1]:
        raise ValueError(f"k = {k}: {best.shape[1]} best labels of each point were given")
