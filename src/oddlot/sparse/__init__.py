"""Very large output layers, trained on CPUs by computing only a few of their rows for each example.

`SampledLinear` is an output layer for any PyTorch network, and `SlideClassifier` an estimator for scikit-learn. This
package imports nothing else of oddlot.
"""

from oddlot.sparse.classifier import SlideClassifier
from oddlot.sparse.lazy_adam import LazyAdam
from oddlot.sparse.optimizers import SGD, Adam, RowAdagrad
from oddlot.sparse.sampled_linear import SampledLinear
from oddlot.sparse.sampler import Refresh, Sampler
from oddlot.sparse.samplers import LSH, Clusters, Dense, Mixed, Shared, Uniform, Unigram
from oddlot.sparse.sparse_input import SparseInputLinear

__all__ = [
    "LSH",
    "SGD",
    "Adam",
    "Clusters",
    "Dense",
    "LazyAdam",
    "Mixed",
    "Refresh",
    "RowAdagrad",
    "SampledLinear",
    "Sampler",
    "Shared",
    "SlideClassifier",
    "SparseInputLinear",
    "Uniform",
    "Unigram",
]
