"""The range of a prediction, from the errors of earlier predictions."""

from bisect import bisect_left, insort
from collections import deque
from math import exp

from oddlot.queue.predict.predictor import Prediction, in_bounds

WINDOW = 500
"""Number of errors that are kept."""
ENOUGH = 20
LOW, HIGH = 0.1, 0.9
NORMAL = 1.2816
"""The 90 % quantile of the normal distribution."""
UNKNOWN = 2.0
"""Standard deviation of the logarithm of a duration that nothing is known about."""


class ErrorRange:
    """Quantiles of the latest errors: logarithm of the duration minus the one of its prediction."""

    def __init__(self) -> None:
        self.order: deque[float] = deque()
        self.sorted: list[float] = []

    def add(self, error: float) -> None:
        """Add an error."""
        self.order.append(error)
        insort(self.sorted, error)
        if len(self.order) > WINDOW:
            del self.sorted[bisect_left(self.sorted, self.order.popleft())]

    def around(self, middle: float, deviation: float) -> Prediction:
        """Return the prediction with its range. `middle` is its logarithm.

        `deviation`: standard deviation of the logarithms of similar jobs, used until enough errors are known.
        """
        low, high = middle - NORMAL * deviation, middle + NORMAL * deviation
        if len(self.sorted) >= ENOUGH:
            last = len(self.sorted) - 1
            low = middle + self.sorted[round(LOW * last)]
            high = middle + self.sorted[round(HIGH * last)]
        seconds = in_bounds(exp(min(middle, 100.0)))
        return Prediction(
            seconds, min(seconds, in_bounds(exp(low))), max(seconds, in_bounds(exp(min(high, 100.0))))
        )
