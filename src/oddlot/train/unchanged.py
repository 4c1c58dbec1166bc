"""Finds weights that a job's own code changes beside the optimizer: no update would carry such a change to the hub."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from oddlot.core.errors import JobError

EARLY_CHECKS, CHECK_EVERY = (0, 1, 10), 100
"""a worker's tasks, counted from 0, in which weights are compared: a teacher that begins as its student first moves in
the second one"""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Unchanged:
    """Compares the weights of a learner's model in its first tasks and in every 100th.

    `constants` are frozen parameters and buffers that no block holds: they never change. `trainable` parameters change
    between the steps of an optimizer in local steps alone, and there not before the first backward pass.
    """

    def __init__(self, trainable: Mapping[str, Tensor], constants: Mapping[str, Tensor]) -> None:
        self.trainable, self.constants = trainable, constants
        self._constant_bits = _bits(constants.values())
        self._loaded: list[int] | None = None
        self._tasks = 0
        self.checks = False
        """whether this task is one of those in which weights are compared"""

    def begin(self) -> None:
        """A task begins, its weights loaded."""
        self.checks = self._tasks in EARLY_CHECKS or self._tasks % CHECK_EVERY == 0
        self._tasks += 1
        self._loaded = _bits(self.trainable.values()) if self.checks else None

    def check_trainable(self) -> None:
        """JobError: the job's own code has changed a trainable parameter since the task began.

        Only the first call of a task compares.
        """
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        for name, before, now in zip(self.trainable, loaded, _bits(self.trainable.values()), strict=True):
            if before != now:
                raise JobError(
                    f"the job's own code changed the trainable parameter {name}, and the change would be lost: return "
                    "the loss and leave steps to oddlot. A layer that steps itself, such as "
                    "SampledLinear(optimizer=...), needs optimizer=None, or a strategy with local steps",
                    "weights_changed",
                    parameter=name,
                )

    def check_constants(self) -> None:
        """JobError: the job's own code has changed a frozen parameter, or a buffer that cannot be merged."""
        if not self.checks:
            return
        now = _bits(self.constants.values())
        for (name, tensor), before, after in zip(
            self.constants.items(), self._constant_bits, now, strict=True
        ):
            if before != after:
                is_, help_ = "a frozen parameter", f"Job(as_buffers=[{name!r}, ...]) merges it as a buffer"
                if tensor.is_complex():
                    is_, help_ = "a complex buffer", "keep real and imaginary part as two real buffers"
                raise JobError(
                    f"the job's own code changed {name}, {is_}, and the change would be lost: {help_}",
                    "constant_changed",
                    parameter=name,
                )


def _bits(tensors: Iterable[Tensor]) -> list[int]:
    """The sum of each tensor's bits as integers, which a change of its values changes."""
    flat = (tensor.detach().reshape(-1) for tensor in tensors)
    whole = (torch.view_as_real(one).reshape(-1) if one.is_complex() else one for one in flat)
    return [int(one.view(_INTEGERS[one.element_size()]).sum(dtype=torch.int64)) for one in whole]
