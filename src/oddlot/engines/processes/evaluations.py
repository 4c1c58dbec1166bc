"""Pending evaluations, and the timeout of the evaluator."""

from math import inf
from typing import Any

FIRST_SECONDS = 600.0
"""Timeout of the first evaluation, in seconds."""
MIN_SECONDS, TIMES = 30.0, 10.0
"""Minimum timeout of later evaluations, in seconds, and their timeout relative to the longest evaluation so far."""


def hung_evaluation_after(longest: float | None) -> float:
    """Return the timeout of an evaluation, in seconds. `longest`: duration of the longest evaluation so far, or None
    for the first."""
    return FIRST_SECONDS if longest is None else max(MIN_SECONDS, TIMES * longest)


class Evaluations:
    """Pending evaluations of versions."""

    def __init__(self) -> None:
        self.requested: dict[int, Any] = {}
        """Location of each version's weights: the number of a block, or an object of the engine."""
        self._longest: float | None = None
        self._since: float | None = None
        """Start of the current evaluation."""

    @property
    def deadline(self) -> float:
        """Return the time when the evaluator counts as hung, or infinity while it is idle."""
        return inf if self._since is None else self._since + hung_evaluation_after(self._longest)

    def sent(self, now: float) -> None:
        """Record that a request was sent to the evaluator."""
        self._since = now if self._since is None else self._since

    def done(self, version: int, now: float) -> None:
        """Record that metrics arrived."""
        del self.requested[version]
        if self._since is not None:
            self._longest = max(self._longest or 0.0, now - self._since)
        self._since = now if self.requested else None

    def lost(self) -> None:
        """Record that the evaluator ended. All pending evaluations will be requested again."""
        self._since = None
