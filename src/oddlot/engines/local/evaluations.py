"""What the evaluator was asked to measure, and when it counts as hung: bookkeeping without processes."""

from math import inf

FIRST_SECONDS = 600.0
"""that an evaluation may take as long as none is known"""
MIN_SECONDS, TIMES = 30.0, 10.0
"""afterwards: so many times the longest one, and at least so many seconds"""


class Evaluations:
    """Versions that wait for their metrics, each with the block that holds its weights."""

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}
        self._longest: float | None = None
        self._since: float | None = None
        """since when the evaluator has been at work on the present one"""

    @property
    def deadline(self) -> float:
        """When the evaluator counts as hung; infinity while it is not at work."""
        if self._since is None:
            return inf
        longest = FIRST_SECONDS if self._longest is None else max(MIN_SECONDS, TIMES * self._longest)
        return self._since + longest

    def sent(self, now: float) -> None:
        """The evaluator was asked for one of them."""
        self._since = now if self._since is None else self._since

    def done(self, version: int, now: float) -> None:
        """Its metrics are here."""
        del self.blocks[version]
        if self._since is not None:
            self._longest = max(self._longest or 0.0, now - self._since)
        self._since = now if self.blocks else None

    def lost(self) -> None:
        """The evaluator has ended: its successor is asked for all of them."""
        self._since = None
