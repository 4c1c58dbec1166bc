"""The sum of gradients over the chunks of a task, in the order of `core/sum_tree`."""

from collections.abc import Callable

import torch

from oddlot.core.sum_tree import additions, first_subtree
from oddlot.core.support.errors import JobError
from oddlot.data.sample_order import Minibatch
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.train.bound_buffers import same_bits
from oddlot.train.stepper import Losses

Gradient = Callable[[Minibatch, int, FlatBuffer], Losses]
"""Writes the gradient of a chunk, times its weight, into a block. The number is the seed of the chunk."""


class ChunkMemory:
    """Memory for partial sums, which a worker uses for all its tasks."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self._layout, self._device = layout, device
        self._blocks: list[FlatBuffer] = []
        self._has_repeated = False
        """Whether the gradient of a chunk had the same bits twice."""

    def block(self, level: int) -> FlatBuffer:
        """Return the memory of a partial sum, from level 1."""
        while len(self._blocks) < level:
            self._blocks.append(FlatBuffer.empty(self._layout, self._device))
        return self._blocks[level - 1]

    def check_repeats(self, chunk: Minibatch, seed: int, gradient: Gradient) -> None:
        """Compute the worker's first chunk twice. Raise JobError if the bits of the gradients differ."""
        if self._has_repeated:
            return
        one, two = self.block(1), self.block(2)
        for block in (one, two):
            gradient(chunk, seed, block)
        names = (entry.name for entry in self._layout.trainable_entries)
        if other := next((name for name in names if not same_bits(one.view(name), two.view(name))), ""):
            raise JobError(
                f"the gradient of {other} is another one the second time, with the same samples and random numbers, so "
                "exact rounds would depend on the workers. Attributes and globals of the job must not change during "
                "training, and random numbers must be those of the global generators or of dataset.rng",
                "chunk_does_not_repeat",
                parameter=other,
            )
        self._has_repeated = True


class ChunkSums:
    """Adds the gradients of the chunks of a task, one after the other. The sum of the first ones is in `out`.

    The bits depend only on the weights, the samples and the seeds.
    """

    def __init__(self, chunks: int, out: FlatBuffer, gradient: Gradient, memory: ChunkMemory) -> None:
        self._additions = additions([1] * chunks)
        self._stack: list[FlatBuffer] = []
        self._out, self._gradient, self._memory = out, gradient, memory
        self._done: list[tuple[int, Losses]] = []

    def add(self, chunk: Minibatch, seed: int) -> Losses:
        """Add the gradient of the next chunk, and return its losses. Raise JobError if it does not repeat."""
        if not self._stack:
            self._memory.check_repeats(chunk, seed, self._gradient)
        block = self._memory.block(len(self._stack)) if self._stack else self._out
        losses = self._gradient(chunk, seed, block)
        self._stack.append(block)
        for _ in range(self._additions[len(self._done)]):
            right = self._stack.pop()
            for index in right.layout.of_role("trainable"):
                self._stack[-1].section(index).add_(right.section(index))
        self._done.append((chunk.positions, losses))
        return losses

    def summed(self) -> tuple[int, Losses]:
        """Return the number of positions in the sum of `out`, and their losses.

        If not all chunks were computed, `out` has the largest power of two of the first ones.
        """
        kept = first_subtree(len(self._done), len(self._additions))
        total = Losses()
        for _, losses in self._done[:kept]:
            total.add(losses)
        return sum(positions for positions, _ in self._done[:kept]), total
