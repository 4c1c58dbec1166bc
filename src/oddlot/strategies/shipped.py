"""The strategies that come with oddlot, in the order of lists. Register a new strategy here only."""

# ruff: noqa: I001 - the order of `oddlot strategies`
from oddlot.strategies.synchronous import Synchronous as Synchronous
from oddlot.strategies.fastest_k import FastestK as FastestK
from oddlot.strategies.adaptive_k import AdaptiveK as AdaptiveK
from oddlot.strategies.adaptive_load import AdaptiveLoad as AdaptiveLoad
from oddlot.strategies.asynchronous import Asynchronous as Asynchronous
from oddlot.strategies.local_sgd import LocalSGD as LocalSGD
from oddlot.strategies.federated_averaging import FederatedAveraging as FederatedAveraging
from oddlot.strategies.elastic_averaging import ElasticAveraging as ElasticAveraging
from oddlot.strategies.downpour import Downpour as Downpour
from oddlot.strategies.vc_asgd import VCASGD as VCASGD
from oddlot.strategies.gossip import Gossip as Gossip
from oddlot.strategies.adaptive_gossip import AdaptiveGossip as AdaptiveGossip
from oddlot.strategies.event_grad import EventGrad as EventGrad
from oddlot.strategies.quorum import Quorum as Quorum
from oddlot.strategies.backup_tasks import BackupTasks as BackupTasks
from oddlot.strategies.deadline import Deadline as Deadline
from oddlot.strategies.proportional_load import ProportionalLoad as ProportionalLoad
from oddlot.strategies.groups import Groups as Groups
