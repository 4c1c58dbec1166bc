"""A metric and the direction in which it improves, such as "max accuracy"."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite

from oddlot.core.support.errors import InvalidValue, UnknownName, UsageError

DIRECTIONS = {"loss": "min", "accuracy": "max"}
"""Direction of metrics that need none in the text."""


@dataclass(frozen=True)
class BestMetric:
    """A metric that selects the best evaluation. NaN and infinity are never the best."""

    name: str
    direction: str
    """`min` or `max`."""

    def __str__(self) -> str:
        return f"{self.direction} {self.name}"

    @classmethod
    def parse(cls, text: object, setting: str) -> "BestMetric":
        """Read the value of a setting: "loss", "accuracy", "max NAME" or "min NAME"."""
        words = text.split() if isinstance(text, str) else []
        if len(words) == 1 and words[0] in DIRECTIONS:
            return cls(words[0], DIRECTIONS[words[0]])
        if len(words) == 2 and words[0] in {"min", "max"}:
            return cls(words[1], words[0])
        if len(words) == 1 and words[0] not in {"min", "max"}:
            name = words[0]
            message = f"{setting} = {text!r} has no direction: use 'max {name}' or 'min {name}'"
            raise UsageError(message, "no_direction", setting, name=setting, given=text)
        must = "a metric such as 'loss', 'accuracy', 'max f1' or 'min perplexity'"
        raise InvalidValue(setting, text, must)

    def check(self, metrics: Iterable[str], setting: str) -> None:
        """Raise UsageError unless the metric is evaluated. `metrics` are the names of the evaluated metrics."""
        metrics = list(metrics)
        if not metrics:
            message = (
                f"{setting} = {str(self)!r} needs evaluations: pass Job(eval_data=...), and compute gradients"
            )
            raise UsageError(message, "no_evaluation_set", setting, name=setting, given=str(self))
        if self.name not in metrics:
            error = UnknownName("metric", self.name, metrics, key=setting)
            raise error.with_message(f"{setting} = {str(self)!r}: {error}")

    def value(self, metrics: Mapping[str, float]) -> float | None:
        """Return the value of the metric. None if it is missing or not finite."""
        value = metrics.get(self.name)
        return value if value is not None and isfinite(value) else None

    def improves(self, metrics: Mapping[str, float], best: float | None, min_delta: float = 0.0) -> bool:
        """Return whether metrics are better than the best value by more than `min_delta`. None: no best value yet."""
        value = self.value(metrics)
        if value is None or best is None:
            return value is not None
        return value < best - min_delta if self.direction == "min" else value > best + min_delta
