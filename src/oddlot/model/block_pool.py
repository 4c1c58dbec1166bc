"""Memory blocks for the versions of a model."""

from collections.abc import Callable
from math import inf
from typing import Protocol

from oddlot.model.flat_buffer import FlatBuffer


class BlockSource(Protocol):
    """A source of memory blocks for the store."""

    def take(self) -> FlatBuffer:
        """Return an unused block. Its padding is zero, and its values are arbitrary."""

    def give(self, block: FlatBuffer) -> None:
        """Take back a block."""


class Pool:
    """A thread-safe BlockSource that creates blocks with `make` and keeps up to `most` unused blocks."""

    def __init__(self, make: Callable[[], FlatBuffer], most: float = inf) -> None:
        self._make, self._most = make, most
        self._spare: list[FlatBuffer] = []

    def take(self) -> FlatBuffer:
        try:
            return self._spare.pop()
        except IndexError:
            return self._make()

    def give(self, block: FlatBuffer) -> None:
        if len(self._spare) < self._most:
            self._spare.append(block)
