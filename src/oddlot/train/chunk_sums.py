"""The sum of gradients over the chunks of a task, in the order of `core/sum_tree`."""

from collections.abc import Callable

from oddlot.core.sum_tree import additions, first_subtree
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.train.stepper import Losses


class ChunkSums:
    """Adds the gradients of chunks, one after the other. The sum of the first ones is in `out`.

    `spare(level)` returns memory for a partial sum, which is used again after it was added.
    """

    def __init__(self, chunks: int, out: FlatBuffer, spare: Callable[[int], FlatBuffer]) -> None:
        self._additions = additions([1] * chunks)
        self._stack: list[FlatBuffer] = []
        self._out, self._spare = out, spare
        self._done: list[tuple[int, Losses]] = []

    def next_block(self) -> FlatBuffer:
        """Return the memory for the gradient of the next chunk."""
        return self._spare(len(self._stack)) if self._stack else self._out

    def add(self, block: FlatBuffer, positions: int, losses: Losses) -> None:
        """Add the gradient of a chunk with this number of positions."""
        self._stack.append(block)
        for _ in range(self._additions[len(self._done)]):
            right = self._stack.pop()
            for index in right.layout.of_role("trainable"):
                self._stack[-1].section(index).add_(right.section(index))
        self._done.append((positions, losses))

    def summed(self) -> tuple[int, Losses]:
        """Return the number of positions in the sum of `out`, and their losses.

        If not all chunks were computed, `out` has the largest power of two of the first ones.
        """
        kept = first_subtree(len(self._done), len(self._additions))
        total = Losses()
        for _, losses in self._done[:kept]:
            total.add(losses)
        return sum(positions for positions, _ in self._done[:kept]), total
