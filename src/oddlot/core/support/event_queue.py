"""A queue of future events with a virtual clock."""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Generic, TypeVar

Message = TypeVar("Message")


class EventQueue(Generic[Message]):
    """A heap of callbacks by time. Callbacks with the same time run in the order of their addition."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.heap: list[tuple[float, int, Callable[[], Message | None]]] = []
        self.entries = 0

    @property
    def next_time(self) -> float:
        """Return the time of the next callback, or infinity if the queue is empty."""
        return self.heap[0][0] if self.heap else inf

    def at(self, when: float, happen: Callable[[], Message | None]) -> None:
        """Schedule a callback at a time. It may return a message."""
        self.entries += 1
        heappush(self.heap, (when, self.entries, happen))

    def next(self, until: float) -> Message | None:
        """Run callbacks that are due by the time `until`, until one returns a message. Return the message, or None."""
        while self.heap and self.heap[0][0] <= until:
            self.now, _, happen = heappop(self.heap)
            if (message := happen()) is not None:
                return message
        return None
