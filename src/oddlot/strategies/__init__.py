"""Strategies for distributed training, and the base classes for your own."""

from oddlot.core.strategy import Strategy, Traits, View, assign, assign_all, assign_idle, shares_by_samples
from oddlot.core.strategy_wrapper import Wrapper
from oddlot.strategies.adaptive_gossip import AdaptiveGossip
from oddlot.strategies.adaptive_k import AdaptiveK
from oddlot.strategies.adaptive_load import AdaptiveLoad
from oddlot.strategies.asynchronous import Asynchronous
from oddlot.strategies.backup_tasks import BackupTasks
from oddlot.strategies.deadline import Deadline
from oddlot.strategies.downpour import Downpour
from oddlot.strategies.elastic_averaging import ElasticAveraging
from oddlot.strategies.event_grad import EventGrad
from oddlot.strategies.fastest_k import FastestK
from oddlot.strategies.federated_averaging import FederatedAveraging
from oddlot.strategies.gossip import Gossip
from oddlot.strategies.local_sgd import LocalSGD
from oddlot.strategies.proportional_load import ProportionalLoad
from oddlot.strategies.quorum import Quorum
from oddlot.strategies.support.stage_switching import ByError, ByGradients, ByPlateau
from oddlot.strategies.synchronous import Synchronous
from oddlot.strategies.vc_asgd import VCASGD

__all__ = [
    "VCASGD",
    "AdaptiveGossip",
    "AdaptiveK",
    "AdaptiveLoad",
    "Asynchronous",
    "BackupTasks",
    "ByError",
    "ByGradients",
    "ByPlateau",
    "Deadline",
    "Downpour",
    "ElasticAveraging",
    "EventGrad",
    "FastestK",
    "FederatedAveraging",
    "Gossip",
    "LocalSGD",
    "ProportionalLoad",
    "Quorum",
    "Strategy",
    "Synchronous",
    "Traits",
    "View",
    "Wrapper",
    "assign",
    "assign_all",
    "assign_idle",
    "shares_by_samples",
]
