"""What ends a stage of rounds: noise that outweighs progress, a metric that has ceased to fall, or the error itself."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from typing import Annotated

from oddlot.core.errors import UsageError
from oddlot.core.events import Changed, Evaluated, Event
from oddlot.core.strategy import STATE
from oddlot.core.suggestions import nearest, or_nearest
from oddlot.core.validation import AboveZero, AtLeastOne, Must, at_least, check_settings
from oddlot.strategies.support.noise_test import THRESHOLD, WINDOW, Pflug

KNOWN, WAYS = {"loss": "min", "accuracy": "max"}, {"min": "falls", "max": "rises"}
"""metrics of which it is known which way they go as a model gets better"""


@dataclass
class ByGradients:
    """A stage ends when gradients, summed over a window of rounds, point back and forth
    (`oddlot.strategies.support.noise_test`). The count begins anew where rounds become others.

    Algorithm 1 of Kas Hanna et al. (ICASSP 2020) is `window=1, threshold=10, burn_in=200`, which takes noise for the
    end of progress where the learning rate times the largest curvature is above 1.
    """

    window: AtLeastOne = WINDOW
    """rounds whose gradients are summed, and compared with the sum of those before"""
    threshold: Annotated[int, at_least(0)] = THRESHOLD
    """so many more negative inner products than positive ones"""
    burn_in: Annotated[int, at_least(0)] = 0
    """rounds that a stage lasts at least"""
    pflug: Pflug = field(default_factory=Pflug, metadata=STATE)
    """state: of the gradients of this stage"""

    def __post_init__(self) -> None:
        check_settings(self)

    def stage(self, event: Event, at: int, ends: Sequence[float]) -> int:
        """Which one it is after this event."""
        if isinstance(event, Changed) and event.inner is not None:
            return at + self.pflug.count(event.inner, self.window, self.threshold, self.burn_in)
        return at


@dataclass
class ByPlateau:
    """A stage ends when a metric gets no better."""

    metric: str = "loss"
    mode: Annotated[str | None, Must("'min' or 'max', or be left out", ("min", "max", None).__contains__)] = (
        None
    )
    """min where the metric falls as the model gets better, max where it rises; None: as it is with loss and accuracy"""
    patience: AtLeastOne = 5
    """evaluations without a new best value"""
    best: float | None = field(default=None, metadata=STATE)
    """state: the best value so far"""
    since: int = field(default=0, metadata=STATE)
    """state: evaluations since then, or since the stage began"""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.mode is None and self.metric not in KNOWN:
            meant = nearest(self.metric, KNOWN)
            raise UsageError(
                f"mode: say whether {self.metric} falls ('min') or rises ('max') as the model gets better"
                + (f", or is `{meant}` meant?" if meant else ""),
                "missing_mode",
                "mode",
                metric=self.metric,
                nearest=meant,
            )
        if self.mode not in {None, KNOWN.get(self.metric, self.mode)}:
            raise UsageError(
                f"mode = {self.mode!r}: the {self.metric} {WAYS[KNOWN[self.metric]]} as the model gets better",
                "wrong_mode",
                "mode",
                metric=self.metric,
                mode=self.mode,
            )

    @property
    def rises(self) -> bool:
        """The metric does, as the model gets better."""
        return (self.mode or KNOWN.get(self.metric)) == "max"

    def stage(self, event: Event, at: int, ends: Sequence[float]) -> int:
        """Which one it is after this event."""
        if not isinstance(event, Evaluated):
            return at
        value, sign = value_of(event, self.metric), -1 if self.rises else 1
        if sign * value < (inf if self.best is None else sign * self.best):  # and never where it is NaN
            self.best, self.since = value, 0
        else:
            self.since += 1
        if self.since < self.patience:
            return at
        self.since = 0
        return at + 1


@dataclass
class ByError:
    """A stage ends where another one is faster, by the error and constants that are known."""

    a: AboveZero
    """where the metric would end, above the lowest value, with rounds of one sample: eta L sigma^2 / (2 c) in the
    paper, which is far too much where it is not measured instead"""
    metric: str = "loss"
    lowest: Annotated[float, Must("finite", isfinite)] = 0.0
    """the value of the best model there is"""

    def __post_init__(self) -> None:
        check_settings(self)
        if KNOWN.get(self.metric) == "max":
            raise UsageError(
                f"metric = {self.metric!r} rises as the model gets better: an error falls",
                "rising_metric",
                "metric",
                metric=self.metric,
            )

    def stage(self, event: Event, at: int, ends: Sequence[float]) -> int:
        """Which one it is after this event."""
        if not isinstance(event, Evaluated):
            return at
        error = (value_of(event, self.metric) - self.lowest) / self.a
        return max(at, sum(error < until for until in ends))


Switch = ByGradients | ByPlateau | ByError
ByNoConstants = ByGradients | ByPlateau


def check_metrics(switch: Switch, names: Collection[str]) -> None:
    """UsageError: what ends stages is not evaluated."""
    metric = getattr(switch, "metric", None)
    if metric is not None and metric not in names:
        why = (
            or_nearest(metric, names)
            if names
            else "nothing is, as the job has no evaluation, or nothing is computed"
        )
        told = f"metric = {metric!r} is not evaluated: {why}"
        raise UsageError(told, "metric_not_evaluated", "switch.metric", metric=metric)


def rounds_measured(switch: Switch) -> int:
    """The rounds whose gradients are summed before they are compared; 0: none are."""
    return switch.window if isinstance(switch, ByGradients) else 0


def value_of(event: Evaluated, metric: str) -> float:
    """NaN where it was not finite, and is left out."""
    return event.metrics.get(metric, nan)
