"""Huge output layers, trained on CPUs by computing few of their rows for each example.

Stands alone: it imports nothing else of oddlot, and `SampledLinear` sits on top of any PyTorch network.
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
