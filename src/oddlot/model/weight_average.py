"""An exponential moving average of the weights, in the arithmetic of `torch.optim.swa_utils.AveragedModel`."""

import torch
from torch import Tensor

from oddlot.model.flat_buffer import FlatBuffer

COUNT = "count"
"""Name of the number of updates among the saved tensors."""


class WeightAverage:
    """The moving average of the weights after each merge. Buffers have the newest values.

    The first merge sets the average to the weights; each further one computes
    average <- decay x average + (1 - decay) x weights.
    """

    def __init__(self, decay: float, weights: FlatBuffer) -> None:
        self.decay, self.count = decay, 0
        self.weights = FlatBuffer.empty(weights.layout, weights.memory.device)
        """The average."""
        self.weights.copy_(weights)
        self._names = [entry.name for entry in weights.layout.trainable_entries]

    def update(self, weights: FlatBuffer) -> None:
        """Add the weights of a new version."""
        if self.count == 0:
            self.weights.copy_(weights)
        else:
            mine = [self.weights.view(name) for name in self._names]
            torch._foreach_lerp_(mine, [weights.view(name) for name in self._names], 1 - self.decay)
            for index in (*weights.layout.of_role("buffer"), *weights.layout.of_role("counter")):
                self.weights.section(index).copy_(weights.section(index))
        self.count += 1

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint. They are views."""
        return {COUNT: torch.tensor(self.count), **dict(self.weights.sections())}
