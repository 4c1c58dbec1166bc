"""Criteria that end a stage of rounds: noise that outweighs progress, a plateau of a metric, or the error."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from typing import Annotated

from oddlot.core.events import Changed, Evaluated, Event
from oddlot.core.strategy import STATE
from oddlot.core.support.errors import UsageError
from oddlot.core.support.text import nearest, or_nearest
from oddlot.core.support.validation import AboveZero, AtLeastOne, Must, at_least, check_settings
from oddlot.strategies.support.noise_test import THRESHOLD, WINDOW, Pflug

KNOWN, WAYS = {"loss": "min", "accuracy": "max"}, {"min": "falls", "max": "rises"}
"""Directions of known metrics, and descriptions of directions."""


@dataclass
class ByGradients:
    """End a stage when noise outweighs progress: summed gradients of consecutive windows point in opposite directions.

    The test (`oddlot.strategies.support.noise_test`) restarts at each stage.

    `window=1, threshold=10, burn_in=200` is algorithm 1 of Kas Hanna et al. (ICASSP 2020). That setting ends stages too
    early if the learning rate times the largest curvature is above 1.
    """

    window: AtLeastOne = WINDOW
    """Rounds of a window. Its summed gradient is compared with that of the previous window."""
    threshold: Annotated[int, at_least(0)] = THRESHOLD
    """Negative inner products minus positive ones above which the stage ends."""
    burn_in: Annotated[int, at_least(0)] = 0
    """Smallest number of rounds of a stage."""
    pflug: Pflug = field(default_factory=Pflug, metadata=STATE)
    """State: the test of this stage."""

    def __post_init__(self) -> None:
        check_settings(self)

    def stage(self, event: Event, at: int, ends: Sequence[float]) -> int:
        """Return the index of the stage after this event."""
        if isinstance(event, Changed) and event.inner is not None:
            return at + self.pflug.count(event.inner, self.window, self.threshold, self.burn_in)
        return at

    @property
    def agree(self) -> bool:
        """Return whether the latest inner products, more than `threshold` of them, are all nonnegative.

        With the defaults, this happens by chance after 126 windows on average if half of the products are positive. By
        then the stage has usually ended.
        """
        return self.pflug.agreeing > self.threshold and self.pflug.rounds > self.burn_in


@dataclass
class ByPlateau:
    """End a stage when a metric has stopped improving."""

    metric: str = "loss"
    """Name of the metric."""
    mode: Annotated[str | None, Must("'min' or 'max', or be left out", ("min", "max", None).__contains__)] = (
        None
    )
    """`min` if lower values are better, `max` if higher values are. None: known for `loss` and `accuracy`."""
    patience: AtLeastOne = 5
    """Evaluations without an improvement after which the stage ends."""
    best: float | None = field(default=None, metadata=STATE)
    """State: best value so far."""
    since: int = field(default=0, metadata=STATE)
    """State: evaluations since the best value, or since the start of the stage."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.mode is None and self.metric not in KNOWN:
            meant = nearest(self.metric, KNOWN)
            raise UsageError(
                f"mode is missing: set it to 'min' if a lower {self.metric} is better, else to 'max'"
                + (f". Did you mean the metric {meant!r}?" if meant else ""),
                "missing_mode",
                "mode",
                metric=self.metric,
                nearest=meant,
            )
        if self.mode not in {None, KNOWN.get(self.metric, self.mode)}:
            raise UsageError(
                f"mode = {self.mode!r}, but the {self.metric} {WAYS[KNOWN[self.metric]]} as the model improves",
                "wrong_mode",
                "mode",
                metric=self.metric,
                mode=self.mode,
            )

    @property
    def rises(self) -> bool:
        """Return whether the metric rises as the model improves."""
        return (self.mode or KNOWN.get(self.metric)) == "max"

    def stage(self, event: Event, at: int, ends: Sequence[float]) -> int:
        """Return the index of the stage after this event."""
        if not isinstance(event, Evaluated):
            return at
        value, sign = value_of(event, self.metric), -1 if self.rises else 1
        if sign * value < (inf if self.best is None else sign * self.best):  # False for NaN
            self.best, self.since = value, 0
        else:
            self.since += 1
        if self.since < self.patience:
            return at
        self.since = 0
        return at + 1


@dataclass
class ByError:
    """End a stage at the error below which the next stage is faster. This needs known constants."""

    a: AboveZero
    """Final distance of the metric from `lowest` with rounds of one sample: eta L sigma^2 / (2 c) in the paper. Measure
    it: the formula overestimates it by far."""
    metric: str = "loss"
    """Name of the metric, which falls as the model improves."""
    lowest: Annotated[float, Must("finite", isfinite)] = 0.0
    """Lowest possible value of the metric."""

    def __post_init__(self) -> None:
        check_settings(self)
        if KNOWN.get(self.metric) == "max":
            raise UsageError(
                f"metric = {self.metric!r} rises as the model improves: use a metric that falls, such as 'loss'",
                "rising_metric",
                "metric",
                metric=self.metric,
            )

    def stage(self, event: Event, at: int, ends: Sequence[float]) -> int:
        """Return the index of the stage after this event."""
        if not isinstance(event, Evaluated):
            return at
        error = (value_of(event, self.metric) - self.lowest) / self.a
        return max(at, sum(error < until for until in ends))


Switch = ByGradients | ByPlateau | ByError
ByNoConstants = ByGradients | ByPlateau


def check_metrics(switch: Switch, names: Collection[str]) -> None:
    """Raise UsageError if the metric of `switch` is not evaluated."""
    metric = getattr(switch, "metric", None)
    if metric is not None and metric not in names:
        why = (
            f". {or_nearest(metric, names)}"
            if names
            else ": the job has no evaluation (set Job(eval_data=...)), or the run simulates time without training"
        )
        add = f". Or add it: Job(metrics={{{metric!r}: ...}})" if names and metric != "loss" else ""
        message = f"metric = {metric!r} is not evaluated{why}{add}"
        raise UsageError(message, "metric_not_evaluated", "switch.metric", metric=metric)


def rounds_measured(switch: Switch) -> int:
    """Return the number of rounds in a window of summed gradients; 0 if gradients are not used."""
    return switch.window if isinstance(switch, ByGradients) else 0


def value_of(event: Evaluated, metric: str) -> float:
    """Return the value of a metric; NaN if it was not finite."""
    return event.metrics.get(metric, nan)
