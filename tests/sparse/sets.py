"""A generated set that tests of the estimator share, and a network trained on it."""

from typing import Any

from oddlot.sparse import SlideClassifier
from oddlot.sparse.xmc.generating import Shape, generate

SHAPE = Shape(features=800, labels=400, nonzeros=30.0, labels_each=2.0)
X, Y = generate(3000, SHAPE)
X_TEST, Y_TEST = generate(600, SHAPE, stream=1)


def trained(**settings: Any) -> SlideClassifier:
    return SlideClassifier(**{"hidden": 32, "epochs": 12, "batch": 64, **settings}).fit(X, Y)
