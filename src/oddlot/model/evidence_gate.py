"""A gate that rejects updates with a number of samples, a norm or a figure outside the range of recent updates."""

from collections import deque
from dataclasses import dataclass, field
from math import isfinite
from typing import Annotated

from oddlot.core.events import NO_FIGURE, OUTSIDE_RANGE
from oddlot.core.support.errors import InvalidValue, Rejection
from oddlot.core.support.validation import AtLeastOne, Must, check_settings
from oddlot.core.tasks import Kind
from oddlot.model.arrival import Arrival
from oddlot.model.combine import Gate

FAR = 10.0
"""Multiple of the median distance from the median beyond which a figure does not count."""
Percentile = Annotated[float, Must("from 0 to 100", lambda value: 0 <= value <= 100)]


@dataclass
class EvidenceRange(Gate):
    """Rejects an update with a figure outside two percentiles of recent updates, widened by a margin.

    Updates of one kind are compared with each other. The gate is inactive until it has seen `least` updates, and for
    weights whose base is no longer kept, since their norm is not known. An update without the figure is rejected,
    unless its weight is 0.

    The percentiles are those of the accepted updates among the `recent` latest ones: hostile updates that are rejected
    do not move them. Figures further from the median than 10 times the median distance are left out, so that a minority
    that is hostile from the start does not set the range. If fewer than half of the latest updates were accepted, the
    figures of most workers have changed, as after a new learning rate: the percentiles are then those of all latest
    updates. A range that drifts slowly is followed because of `margin`, and with `margin=1` a share of honest updates
    is rejected.
    """

    of: str = "norm"
    """Figure: "samples", "norm" (Euclidean norm of the trainable parameters; for weights, of their change), "loss", or
    the name of another loss of the job."""
    low: Percentile = 5.0
    """Lower percentile, below `high`."""
    high: Percentile = 95.0
    """Upper percentile."""
    margin: Annotated[float, Must("at least 1", lambda value: value >= 1)] = 2.0
    """Factor of at least 1. The lower limit is divided by it, and the upper one multiplied; for negative limits, the
    other way round."""
    recent: AtLeastOne = 200
    """Number of latest updates to compare with."""
    least: AtLeastOne = 20
    """Number of accepted updates before the gate is active."""
    _latest: dict[Kind, deque[tuple[float, bool]]] = field(default_factory=dict, init=False, repr=False)
    """Figures of the latest updates of each kind, and whether they were accepted."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.low >= self.high:
            raise InvalidValue("low", self.low, f"below high = {self.high}", "EvidenceRange")
        if self.least > self.recent:
            raise InvalidValue("least", self.least, f"at most recent = {self.recent}", "EvidenceRange")

    def check(self, arrival: Arrival) -> None:
        """Raise Rejection if the figure of the update is outside the range."""
        value = self._figure(arrival)
        if value is None and (self.of == "norm" or not arrival.facts.weight_merged):
            return
        if value is None or not isfinite(value):
            known = ", ".join(["norm", "samples", "loss", *(arrival.facts.losses or {})])
            message = f"update {arrival.facts.id} has no finite figure {self.of!r}. Updates of this job have: {known}"
            raise Rejection(message, NO_FIGURE, update=arrival.facts.id, of=self.of)
        latest = self._latest.setdefault(arrival.kind, deque(maxlen=self.recent))
        bounds = self._bounds(latest)
        is_inside = bounds is None or bounds[0] <= value <= bounds[1]
        latest.append((value, is_inside))
        if bounds is not None and not is_inside:
            low, high = bounds
            message = (
                f"update {arrival.facts.id} has {self.of} {value:.3g}, outside the range of recent updates, "
                f"{low:.3g} to {high:.3g}"
            )
            update = arrival.facts.id
            raise Rejection(
                message, OUTSIDE_RANGE, update=update, of=self.of, value=value, low=low, high=high
            )

    def _figure(self, arrival: Arrival) -> float | None:
        """Return the figure of an update. None if it has none."""
        facts = arrival.facts
        if self.of == "samples":
            return float(facts.samples)
        if self.of == "norm":
            weight = facts.weight_merged if arrival.kind == "sum" else 1
            return None if arrival.norm is None else arrival.norm / (weight or 1)
        return facts.loss if self.of == "loss" else (facts.losses or {}).get(self.of)

    def _bounds(self, latest: "deque[tuple[float, bool]]") -> tuple[float, float] | None:
        """Return the smallest and the largest figure that is accepted now. None if the gate is inactive."""
        accepted = [value for value, is_inside in latest if is_inside]
        if 2 * len(accepted) < len(latest):
            accepted = [value for value, _ in latest]
        if len(accepted) < self.least:
            return None
        ordered = _without_far_ones(sorted(accepted))
        low, high = _percentile(ordered, self.low), _percentile(ordered, self.high)
        return min(low / self.margin, low * self.margin), max(high / self.margin, high * self.margin)


def _without_far_ones(ordered: list[float]) -> list[float]:
    """Return sorted numbers without those far from the median, compared with the median of all distances from it."""
    median = _percentile(ordered, 50)
    distance = _percentile(sorted(abs(value - median) for value in ordered), 50)
    return [value for value in ordered if abs(value - median) <= FAR * distance] if distance else ordered


def _percentile(ordered: list[float], percent: float) -> float:
    """Return a percentile of sorted numbers, with linear interpolation between them."""
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
