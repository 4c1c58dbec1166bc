"""One algorithm per file: a dataclass of settings with `on(event, view)`."""

from oddlot.strategies.adaptive_k import AdaptiveK
from oddlot.strategies.adaptive_load import AdaptiveLoad
from oddlot.strategies.asynchronous import Asynchronous
from oddlot.strategies.backup_tasks import BackupTasks
from oddlot.strategies.deadline import Deadline
from oddlot.strategies.downpour import Downpour
from oddlot.strategies.elastic_averaging import ElasticAveraging
from oddlot.strategies.fastest_k import FastestK
from oddlot.strategies.federated_averaging import FederatedAveraging
from oddlot.strategies.local_sgd import LocalSGD
from oddlot.strategies.proportional_load import ProportionalLoad
from oddlot.strategies.quorum import Quorum
from oddlot.strategies.synchronous import Synchronous
from oddlot.strategies.vc_asgd import VCASGD

BY_NAME = {
    "synchronous": Synchronous,
    "fastest_k": FastestK,
    "adaptive_k": AdaptiveK,
    "adaptive_load": AdaptiveLoad,
    "asynchronous": Asynchronous,
    "local_sgd": LocalSGD,
    "quorum": Quorum,
    "federated_averaging": FederatedAveraging,
    "elastic_averaging": ElasticAveraging,
    "downpour": Downpour,
    "vc_asgd": VCASGD,
}
"""Strategies by the names that the command line and job files use."""

WRAPPERS = {"backup_tasks": BackupTasks, "deadline": Deadline, "proportional_load": ProportionalLoad}
"""Those around any other one, which is their `inner`, by such names"""

__all__ = [
    "BY_NAME",
    "VCASGD",
    "WRAPPERS",
    "AdaptiveK",
    "AdaptiveLoad",
    "Asynchronous",
    "BackupTasks",
    "Deadline",
    "Downpour",
    "ElasticAveraging",
    "FastestK",
    "FederatedAveraging",
    "LocalSGD",
    "ProportionalLoad",
    "Quorum",
    "Synchronous",
]
