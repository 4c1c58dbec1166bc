"""How the rows of an active set are chosen beside the labels: a file each."""

from oddlot.sparse.samplers.clusters import Clusters
from oddlot.sparse.samplers.dense import Dense
from oddlot.sparse.samplers.lsh import LSH
from oddlot.sparse.samplers.often import Often
from oddlot.sparse.samplers.shared import Shared
from oddlot.sparse.samplers.uniform import Uniform

__all__ = ["LSH", "Clusters", "Dense", "Often", "Shared", "Uniform"]
