"""What will happen when, and a clock that jumps from one of these moments to the next."""

from collections.abc import Callable
from heapq import heappop, heappush

from oddlot.engines.host import Message

Happening = Callable[[], Message | None]
"""What happens then, and what the hub hears of it."""


class Agenda:
    """A heap by time; of what happens at the same time, in the order in which it was planned."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.heap: list[tuple[float, int, Happening]] = []
        self.entries = 0

    def at(self, when: float, happen: Happening) -> None:
        """Plan it."""
        self.entries += 1
        heappush(self.heap, (when, self.entries, happen))

    def next(self, until: float) -> Message | None:
        """Let happen what comes until then; the first thing of it that the hub hears of."""
        while self.heap and self.heap[0][0] <= until:
            self.now, _, happen = heappop(self.heap)
            if (message := happen()) is not None:
                return message
        return None
