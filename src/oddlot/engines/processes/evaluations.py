"""Requested evaluations, and when the evaluator counts as hung."""

from math import inf
from typing import Any

FIRST_SECONDS = 600.0
"""Seconds that the first evaluation may take."""
MIN_SECONDS, TIMES = 30.0, 10.0
"""Later limits: a multiple of the longest evaluation, and the least seconds."""


def hung_evaluation_after(longest: float | None) -> float:
    """Return the seconds after which an evaluation counts as hung. `longest`: that of the earlier ones."""
    return FIRST_SECONDS if longest is None else max(MIN_SECONDS, TIMES * longest)


class Evaluations:
    """Versions that are being evaluated."""

    def __init__(self) -> None:
        self.requested: dict[int, Any] = {}
        """The weights of each version: the block, or the object, that has them."""
        self._longest: float | None = None
        self._since: float | None = None
        """Start of the present evaluation."""

    @property
    def deadline(self) -> float:
        """Return when the evaluator counts as hung; infinity while it is idle."""
        return inf if self._since is None else self._since + hung_evaluation_after(self._longest)

    def sent(self, now: float) -> None:
        """Record that an evaluation was requested from the evaluator."""
        self._since = now if self._since is None else self._since

    def done(self, version: int, now: float) -> None:
        """Record that metrics arrived."""
        del self.requested[version]
        if self._since is not None:
            self._longest = max(self._longest or 0.0, now - self._since)
        self._since = now if self.requested else None

    def lost(self) -> None:
        """Record that the evaluator ended: all evaluations are requested again."""
        self._since = None
