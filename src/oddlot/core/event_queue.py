"""What will happen when, and a clock that jumps from one of these moments to the next."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

Message = TypeVar("Message")


class EventQueue(Generic[Message]):
    """A heap by time; what is planned for the same time happens in the order in which it was planned."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.heap: list[tuple[float, int, Callable[[], Message | None]]] = []
        self.entries = 0

    def at(self, when: float, happen: Callable[[], Message | None]) -> None:
        """Plan what happens at a time. What it returns is the message of that moment, if there is one."""
        self.entries += 1
        heappush(self.heap, (when, self.entries, happen))

    def next(self, until: float) -> Message | None:
        """Let happen what comes until then; the first thing of it that the hub hears of."""
        while self.heap and self.heap[0][0] <= until:
            self.now, _, happen = heappop(self.heap)
            if (message := happen()) is not None:
                return message
        return None
