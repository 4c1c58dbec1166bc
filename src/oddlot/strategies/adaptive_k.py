"""Rounds that wait for few workers at first, and for more when the model no longer gains by it."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from oddlot.core.checks import AtLeastOne, Must, at_least, check_settings
from oddlot.core.errors import UsageError
from oddlot.core.pflug import Pflug
from oddlot.core.rounds import check_enough, fastest
from oddlot.core.strategy import STATE, View
from oddlot.core.words import Changed, Command, Event, UpdateId


def _rise(seconds: tuple[float, ...]) -> bool:
    return all(0 <= one < float("inf") for one in seconds) and list(seconds) == sorted(seconds)


RISING = Must("seconds that rise, each finite and not negative", _rise)


@dataclass
class AdaptiveK:
    """Step along the mean of the first k results of each round; k rises each time that noise outweighs progress. The
    other tasks are cancelled.

    Few results are soon there, but their mean is noisier: the error falls fast at first, and ends higher. By default k
    rises when gradients point back and forth (`oddlot.core.pflug`). With `seconds`, k rises at these times instead,
    such as those of theorem 1, which `oddlot.core.stages.switch_times` computes from known constants.

    Paper: Kas Hanna et al., "Adaptive Distributed SGD for Fast Convergence in the Presence of Stragglers" (ICASSP
    2020), algorithm 1 and theorem 1.
    """

    k: AtLeastOne = 1
    """results that a round waits for, at first"""
    rise: AtLeastOne = 1
    most: AtLeastOne | None = None
    """k goes no higher; None: than `rise` fewer than there are workers"""
    threshold: Annotated[int, at_least(0)] = 10
    """so many more negative inner products than positive ones before k rises"""
    burn_in: Annotated[int, at_least(0)] = 200
    """rounds after a rise in which k stays"""
    seconds: Annotated[tuple[float, ...], RISING] = ()
    """on the run's clock, at each of which k rises"""
    samples: AtLeastOne | None = None
    """per task; None: the job's batch"""
    round: dict[UpdateId, int] = field(default_factory=dict)
    """state: the samples of every update of this round"""
    rises: int = field(default=0, metadata=STATE)
    """state: how often k has risen"""
    pflug: Pflug = field(default_factory=Pflug, metadata=STATE)
    """state: of the gradients since then"""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.most is not None and self.most < self.k:
            raise UsageError(f"most = {self.most} is below k = {self.k}", "most")

    def check_workers(self, workers: int) -> None:
        """UsageError: there will never be k of them."""
        check_enough(self.k, workers)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect a round; close it at the k-th result, and see whether k is to rise."""
        most = self.most or max(self.k, len(view.nodes) - self.rise)
        if self.seconds:
            self.rises = bisect_right(self.seconds, view.now)
        elif isinstance(event, Changed) and event.inner is not None and self._now + self.rise <= most:
            self.rises += self.pflug.count(event.inner, self.threshold, self.burn_in)
        k = min(self._now, most)
        yield from fastest(event, view, self.round, k, self.samples or view.batch, not self.seconds)

    @property
    def _now(self) -> int:
        return self.k + self.rises * self.rise
