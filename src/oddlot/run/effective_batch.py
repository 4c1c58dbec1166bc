"""How many samples one step uses: `batch` is the minibatch of one worker."""

from math import ceil
from typing import Any, NamedTuple

from oddlot.core.strategy import Strategy
from oddlot.core.strategy_wrapper import Wrapper
from oddlot.strategies.adaptive_k import AdaptiveK
from oddlot.strategies.adaptive_load import AdaptiveLoad
from oddlot.strategies.asynchronous import Asynchronous
from oddlot.strategies.downpour import Downpour
from oddlot.strategies.elastic_averaging import ElasticAveraging
from oddlot.strategies.fastest_k import FastestK
from oddlot.strategies.federated_averaging import FederatedAveraging
from oddlot.strategies.local_sgd import LocalSGD
from oddlot.strategies.quorum import Quorum
from oddlot.strategies.synchronous import Synchronous
from oddlot.strategies.vc_asgd import VCASGD

UPDATE, LOCAL_STEP = "update of the model", "local step"


class EffectiveBatch(NamedTuple):
    """The samples of one step, of the model at the hub or of a worker's own weights."""

    samples: int
    step: str
    """`UPDATE` or `LOCAL_STEP`"""
    of: str
    """where that comes from, such as `2 workers x batch 32`"""

    def __str__(self) -> str:
        return f"each {self.step} uses {self.samples:,} samples: {self.of}"


def effective_batch(strategy: Strategy, batch: int, workers: int) -> EffectiveBatch | None:
    """Return the effective batch of a run with `workers` workers; None for strategies that are not oddlot's."""
    match strategy:
        case Quorum(inner):
            whole = effective_batch(inner, batch, workers)
            if whole is None or whole.step == LOCAL_STEP:
                return whole
            return _of(inner, batch, ceil(strategy.quorum * workers), "at least a quorum of {} updates")
        case Wrapper(inner):
            return effective_batch(inner, batch, workers)
        case LocalSGD() | Downpour() | ElasticAveraging() | FederatedAveraging() | VCASGD():
            return EffectiveBatch(batch, LOCAL_STEP, f"batch {batch}")
        case Synchronous():
            return _of(strategy, batch, workers, "{} workers" if workers > 1 else "")
        case FastestK():
            return _of(strategy, batch, strategy.k, "k = {}")
        case AdaptiveK():
            return _of(strategy, batch, strategy.k, "at first k = {}")
        case Asynchronous():
            return _of(strategy, batch, 1, "")
        case AdaptiveLoad():
            least = strategy.least or batch
            return EffectiveBatch(least, UPDATE, "at least that many; a larger round where it is faster")
    return None


def _of(strategy: Any, batch: int, updates: int, name: str) -> EffectiveBatch:
    """Of a step that is the mean of so many updates."""
    samples = strategy.samples or batch
    each = f"samples {samples}" if strategy.samples else f"batch {batch}"
    return EffectiveBatch(updates * samples, UPDATE, f"{name.format(updates)} x {each}" if name else each)
