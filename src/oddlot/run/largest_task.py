"""The largest task of a strategy."""

from typing import NamedTuple

from oddlot.core.strategy import Strategy
from oddlot.core.strategy_wrapper import Wrapper
from oddlot.strategies.adaptive_k import AdaptiveK
from oddlot.strategies.adaptive_load import AdaptiveLoad
from oddlot.strategies.asynchronous import Asynchronous
from oddlot.strategies.downpour import Downpour
from oddlot.strategies.elastic_averaging import ElasticAveraging
from oddlot.strategies.fastest_k import FastestK
from oddlot.strategies.local_sgd import LocalSGD
from oddlot.strategies.synchronous import Synchronous


class Task(NamedTuple):
    """The largest task that a strategy assigns."""

    setting: str
    """the setting that decides, of the strategy or of one inside it"""
    samples: int


def largest_task(strategy: Strategy, batch: int) -> Task | None:
    """Return the largest task of one of oddlot's strategies; None where it is not known."""
    match strategy:
        case Wrapper(inner):
            found = largest_task(inner, batch)
            return found and Task(f"inner.{found.setting}", found.samples)
        case Synchronous() | FastestK() | AdaptiveK() | Asynchronous():
            return Task("samples", strategy.samples or batch)
        case LocalSGD() | Downpour() | ElasticAveraging():
            return Task("steps", strategy.steps * batch)
        case AdaptiveLoad() if strategy.table:
            return Task("table", max(samples for _, samples, _ in strategy.table))
        case AdaptiveLoad():
            return Task("loads", max(strategy.wants_fitted(batch)))
    return None
