"""How good the best labels of points are: the metrics of the Extreme Classification Repository.

Labels are what `SlideClassifier` takes: a CSR matrix or an array of zeros and ones, [points, labels], or one label
each. A label that stands there twice is one. ValueError: there are not as many points as predictions.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.csr import Csr
from oddlot.sparse.errors import coded, invalid_value
from oddlot.sparse.matrices import checked_labels

A, B = 0.55, 1.5
"""of the propensities, as Jain et al. fitted them; the repository has others for its Wikipedia and Amazon sets"""


def hits(best: NDArray[np.integer], labels: Any) -> NDArray[np.bool_]:
    """Which of the labels `best[i]`, the best first, are among those of point i: [points, k]. -1 stands for none."""
    return _hits(best, checked_labels(labels, len(best)))


def _hits(best: NDArray[np.integer], labels: Csr) -> NDArray[np.bool_]:
    points = np.arange(len(labels), dtype=np.int64)
    width = max(labels.shape[1], int(best.max(initial=0)) + 1)
    truth = np.repeat(points, np.diff(labels.indptr)) * width + labels.indices
    return np.isin(points[:, None] * width + best, truth) & (best >= 0)


def precision(best: NDArray[np.integer], labels: Any, k: int) -> float:
    """P@k: the share of the k best labels that are right, averaged over points. ValueError: fewer than k were given."""
    _check(best, k)
    found = hits(best[:, :k], labels)
    return float(found.mean()) if len(found) else 0.0


def ndcg(best: NDArray[np.integer], labels: Any, k: int) -> float:
    """nDCG@k: a right label at place j counts 1 / log2(j + 1), over what the best order of all would have."""
    _check(best, k)
    labels = checked_labels(labels, len(best)).distinct()
    gains = 1 / np.log2(np.arange(2, k + 2))
    counts = np.diff(labels.indptr)
    most = np.concatenate([[0.0], np.cumsum(gains)])[np.minimum(counts, k)]
    some = most > 0
    return float(((_hits(best[:, :k], labels) @ gains)[some] / most[some]).mean()) if some.any() else 0.0


def propensities(train: Any, a: float = A, b: float = B) -> NDArray[np.float64]:
    """How likely it is that a label is noted where it is right, from how often it occurs in training.

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
    """PSP@k: each right label counts 1 / propensity, over what the best choice of k labels would have."""
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
        error = ValueError(f"the best labels are an array {best.shape}: [points, k] is expected")
        raise coded(error, "wrong_shape", name="best", shape=best.shape)
    if not 1 <= k <= best.shape[1]:
        raise invalid_value(
            "k", k, f"from 1 to {best.shape[1]}, the best labels of each point that were given"
        )
