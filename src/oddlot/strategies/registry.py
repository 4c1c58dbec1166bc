"""Strategies by their names on the command line and in job files, and users' own by their import path."""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial

from oddlot.core.errors import UnknownName, UsageError
from oddlot.core.optimizers import SGD
from oddlot.core.strategy import Strategy
from oddlot.core.user_code import imported_class, is_import_path
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
from oddlot.strategies.synchronous import Synchronous
from oddlot.strategies.vc_asgd import VCASGD

BY_NAME: dict[str, type[Strategy]] = {
    "synchronous": Synchronous,
    "fastest_k": FastestK,
    "adaptive_k": AdaptiveK,
    "adaptive_load": AdaptiveLoad,
    "asynchronous": Asynchronous,
    "local_sgd": LocalSGD,
    "federated_averaging": FederatedAveraging,
    "elastic_averaging": ElasticAveraging,
    "downpour": Downpour,
    "vc_asgd": VCASGD,
    "gossip": Gossip,
    "adaptive_gossip": AdaptiveGossip,
    "event_grad": EventGrad,
}
"""Strategies by their names on the command line and in job files."""

WRAPPERS: dict[str, type[Strategy]] = {
    "quorum": Quorum,
    "backup_tasks": BackupTasks,
    "deadline": Deadline,
    "proportional_load": ProportionalLoad,
}
"""Wrappers by name. Each changes another strategy, its `inner` strategy."""

INSIDE: dict[type, Callable[[], Strategy]] = {
    Quorum: partial(LocalSGD, server=SGD(lr=0.7, momentum=0.9, nesterov=True))
}
"""Default inner strategies of wrappers in job files, as in the wrappers' papers. Other wrappers: `Synchronous()`."""


def strategy_of(given: Strategy | str) -> Strategy:
    """Return the given strategy, or the named strategy with default settings. Raise UsageError as `strategy_class`
    does."""
    if not isinstance(given, str):
        return given
    kind: Callable[..., Strategy] = strategy_class(given)
    return kind(INSIDE.get(WRAPPERS[given], Synchronous)()) if given in WRAPPERS else kind()


def strategy_class(name: str) -> type[Strategy]:
    """Return the strategy class of a name, or of an import path such as `mypkg.mymodule:MyStrategy`.

    Raise UsageError if the name is unknown or its module cannot be imported.
    """
    known = BY_NAME | WRAPPERS
    if name in known:
        return known[name]
    if not is_import_path(name):
        unknown = UnknownName("strategy", name, known, key="name")
        raise unknown.retold(f"{unknown}; or name your own class as package.module:Class")
    kind: type[Strategy] = imported_class(name, Strategy, "strategy", key="name")
    is_whole: bool = is_dataclass(kind)
    if not is_whole:
        told = f"the strategy {name} is not a dataclass: put @dataclass before its class"
        raise UsageError(told, "no_dataclass", "name", given=name)
    return kind
