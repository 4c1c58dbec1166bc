"""The durations of similar jobs, summarized."""

from math import log, sqrt

from oddlot.queue.predict.predictor import in_bounds

KEEP = 0.98
"""Weight of a duration after the next one. Measured: docs/papers/helios.md."""


class DurationStats:
    """Mean and variance of the logarithms of durations. With `keep` < 1, older durations count less."""

    __slots__ = ("count", "last", "mean", "squares", "weight")

    def __init__(self) -> None:
        self.count = 0
        self.weight = 0.0
        self.mean = 0.0
        """Mean logarithm of the seconds."""
        self.squares = 0.0
        """Weighted sum of squared differences from the mean."""
        self.last = 0.0
        """Logarithm of the last duration."""

    def add(self, seconds: float, keep: float = KEEP) -> None:
        """Add a duration."""
        value = log(in_bounds(seconds))
        self.count += 1
        self.weight = self.weight * keep + 1.0
        change = value - self.mean
        self.mean += change / self.weight
        self.squares = self.squares * keep + change * (value - self.mean)
        self.last = value

    @property
    def deviation(self) -> float:
        """Standard deviation of the logarithms."""
        return sqrt(max(0.0, self.squares) / self.weight) if self.weight else 0.0
