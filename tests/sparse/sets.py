"""A generated dataset for tests of the estimator, and a network trained on it."""

import pickle
from functools import cache
from typing import Any

from oddlot.sparse import SlideClassifier
from oddlot.sparse.datasets.generating import Shape, generate
from tests.sparse.layers import threads

SHAPE = Shape(features=800, labels=400, nonzeros=30.0, labels_each=2.0)
X, Y = generate(1200, SHAPE)
X_TEST, Y_TEST = generate(600, SHAPE, stream=1)


def fresh(sampler: Any = None, **settings: Any) -> SlideClassifier:
    """Return an untrained classifier that can memorize the dataset in 5 epochs."""
    usual: dict[str, Any] = {"hidden": 32, "epochs": 5, "batch": 64, "lr": 0.03, "input_lr": 0.1}
    return SlideClassifier(sampler, **usual | settings)


@cache
def _pickled(**settings: Any) -> bytes:
    with threads(1):
        return pickle.dumps(fresh(**settings).fit(X, Y))


def trained(**settings: Any) -> SlideClassifier:
    """Return a copy of a classifier that is trained once per process."""
    found: SlideClassifier = pickle.loads(_pickled(**settings))
    return found
