"""Samplers of rows in addition to the labels."""

from oddlot.sparse.samplers.clusters import Clusters
from oddlot.sparse.samplers.dense import Dense
from oddlot.sparse.samplers.lsh import LSH
from oddlot.sparse.samplers.mixed import Mixed
from oddlot.sparse.samplers.shared import Shared
from oddlot.sparse.samplers.uniform import Uniform
from oddlot.sparse.samplers.unigram import Unigram

__all__ = ["LSH", "Clusters", "Dense", "Mixed", "Shared", "Uniform", "Unigram"]
