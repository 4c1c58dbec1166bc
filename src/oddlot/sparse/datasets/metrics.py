"""The metrics of the Extreme Classification Repository.

Labels are in the formats of `SlideClassifier`: a CSR matrix or an array of zeros and ones, [points, labels], or one
label each. Repeated labels count once. All functions raise ValueError if points and predictions differ in number.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.csr import Csr
from oddlot.sparse.errors import coded, invalid_value
from oddlot.sparse.matrices import checked_labels

A, B = 0.55, 1.5
"""Default constants of propensities (Jain et al.). The repository has others for its Wikipedia and Amazon datasets."""


def hits(best: NDArray[np.integer], labels: Any) -> NDArray[np.bool_]:
    """Return whether each prediction `best[i]` is a label of point i, bool [points, k]. -1 is never a label."""
    return _hits(best, checked_labels(labels, len(best)))


def _hits(best: NDArray[np.integer], labels: Csr) -> NDArray[np.bool_]:
    points = np.arange(len(labels), dtype=np.int64)
    width = max(labels.shape[1], int(best.max(initial=0)) + 1)
    truth = np.repeat(points, np.diff(labels.indptr)) * width + labels.indices
    return np.isin(points[:, None] * width + best, truth) & (best >= 0)


def precision(best: NDArray[np.integer], labels: Any, k: int) -> float:
    """Return P@k: the share of correct labels among the k best, averaged over points.

    Raise ValueError if there are fewer than k predictions.
    """
    _check(best, k)
    found = hits(best[:, :k], labels)
    return float(found.mean()) if len(found) else 0.0


def ndcg(best: NDArray[np.integer], labels: Any, k: int) -> float:
    """Return nDCG@k: a correct label at position j counts 1 / log2(j + 1), relative to the best possible order."""
    _check(best, k)
    labels = checked_labels(labels, len(best)).distinct()
    gains = 1 / np.log2(np.arange(2, k + 2))
    counts = np.diff(labels.indptr)
    most = np.concatenate([[0.0], np.cumsum(gains)])[np.minimum(counts, k)]
    some = most > 0
    return float(((_hits(best[:, :k], labels) @ gains)[some] / most[some]).mean()) if some.any() else 0.0


def propensities(train: Any, a: float = A, b: float = B) -> NDArray[np.float64]:
    """Return the propensities: the probability that a correct label is observed, from its frequency in training.

    Jain, Prabhu, Varma, "Extreme multi-label loss functions" (KDD 2016), section 4: 1 / (1 + C (N_l + B) ** -A) with
    C = (log N - 1) (B + 1) ** A.
    """
    labels = checked_labels(train, np.shape(train)[0]).distinct()
    counts = np.bincount(labels.indices, minlength=labels.shape[1])
    scale = (np.log(max(np.e, len(labels))) - 1) * (b + 1) ** a
    propensity: NDArray[np.float64] = 1 / (1 + scale * (counts + b) ** -a)
    return propensity


def propensity_precision(
    best: NDArray[np.integer], labels: Any, k: int, propensity: NDArray[np.float64]
) -> float:
    """Return PSP@k: each correct label counts 1 / propensity, relative to the best possible choice of k labels."""
    _check(best, k)
    labels = checked_labels(labels, len(best)).distinct()
    gained = (_hits(best[:, :k], labels) / propensity[best[:, :k]]).sum()
    rows = np.repeat(np.arange(len(labels)), np.diff(labels.indptr))
    worth = 1 / propensity[labels.indices]
    order = np.lexsort((-worth, rows))
    place = np.arange(len(rows)) - np.searchsorted(rows, rows)
    possible = worth[order][place < k].sum()
    return float(gained / possible) if possible else 0.0


def _check(best: NDArray[np.integer], k: int) -> None:
    if best.ndim != 2:
        error = ValueError(f"predictions must have the shape [points, k], not {best.shape}")
        raise coded(error, "wrong_shape", name="best", shape=best.shape)
    if not 1 <= k <= best.shape[1]:
        raise invalid_value("k", k, f"from 1 to {best.shape[1]}, the number of predictions of each point")
