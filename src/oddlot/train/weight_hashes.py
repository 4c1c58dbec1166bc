"""Detection of weights that the job's own code changes without the optimizer, because the changes would be lost."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from oddlot.core.support.errors import JobError

EARLY_CHECKS, CHECK_EVERY = (0, 1, 10), 101
"""Tasks of a worker with a comparison of weights, counted from 0. A teacher that starts equal to its student first
changes in the second task. 101 is prime, so code that runs in every n-th task is detected eventually."""
CHUNK_NUMBERS = 1 << 20
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WeightHashes:
    """Compares the weights of a learner's model in its first tasks and in every 101st task.

    `constants` returns the frozen parameters and buffers outside of blocks, including the constants of the job's
    functions, such as `job.loss.center`. They must never change. An unsaved buffer that it leaves out later is a cache.

    `trainable` parameters may change only in local steps, after the first backward pass. The weights of an embedding
    with `max_norm` change in each forward pass. Updates of local steps include this change.
    """

    def __init__(
        self, model: nn.Module, trainable: Mapping[str, Tensor], constants: Callable[[], Mapping[str, Tensor]]
    ):
        self.trainable, self.constants = trainable, constants
        self.renormed = {
            id(owner.weight) for owner in model.modules() if getattr(owner, "max_norm", None) is not None
        }
        self._constant_bits = _bits(constants())
        self._unsaved = self._constant_bits.keys() - model.state_dict().keys()
        self._loaded: dict[str, int] = {}
        self._tasks = 0
        self.checks = False
        """Whether weights are compared in this task."""

    def begin(self) -> None:
        """Start a task. Its weights must be loaded."""
        self.checks = self._tasks in EARLY_CHECKS or self._tasks % CHECK_EVERY == 0
        self._tasks += 1
        self._loaded = _bits(self.trainable) if self.checks else {}

    def stepped(self) -> None:
        """Stop comparing trainable weights in this task, because local steps have changed them."""
        self._loaded = {}

    def check_trainable(self, local: bool) -> None:
        """Raise JobError if the job's own code has changed a trainable parameter since the start of the task."""
        if not self._loaded:
            return
        now = _bits(self.trainable)
        for name, parameter in self.trainable.items():
            if now[name] != self._loaded[name] and not (local and id(parameter) in self.renormed):
                raise JobError(
                    f"the job's own code changed the trainable parameter {name}, and the change would be lost. Return "
                    "the loss, and let oddlot make the steps. A layer that changes its own weights, such as "
                    "SampledLinear(optimizer=...) or nn.Embedding(max_norm=...), needs a strategy with local steps",
                    "weights_changed",
                    parameter=name,
                )

    def check_constants(self) -> None:
        """Raise JobError if the job's own code has changed a frozen parameter, or a buffer that is not merged."""
        if not self.checks:
            return
        tensors = self.constants()
        now = _bits(tensors)
        caches = self._unsaved - now.keys()
        for name in dict.fromkeys([*self._constant_bits, *now]):
            if name not in caches and now.get(name) != self._constant_bits.get(name):
                is_new, is_unsaved = name not in self._constant_bits, name in self._unsaved
                raise _changed(name, tensors.get(name), is_new, is_unsaved)


def _changed(name: str, tensor: Tensor | None, is_new: bool, is_unsaved: bool) -> JobError:
    is_, help_ = "a frozen parameter", f"Merge it as a buffer with Job(as_buffers=[{name!r}, ...])"
    if is_unsaved:
        is_ = "a buffer with persistent=False"
    if name.startswith("job."):
        is_, help_ = "which is outside of the model", "Make it a buffer of the model"
    elif is_new or tensor is None:
        is_, help_ = (
            "which differs from the tensor of the model factory",
            "Register it in the model factory, with its shape",
        )
    elif tensor.is_complex():
        is_, help_ = "a complex buffer", "Store real and imaginary part as two real buffers"
    message = f"the job's own code changed {name}, {is_}, and the change would be lost. {help_}"
    return JobError(message, "constant_changed", parameter=name)


def _bits(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Return a hash of the bits and positions of each tensor."""
    return {name: _hash(tensor.detach()) for name, tensor in tensors.items()}


def _hash(tensor: Tensor) -> int:
    """Return the sum of bits x (2 x position + 1), modulo 2**64."""
    flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    bits = flat.contiguous().reshape(-1).view(_INTEGERS[flat.element_size()])
    total = 0
    for start in range(0, bits.numel(), CHUNK_NUMBERS):
        chunk = bits[start : start + CHUNK_NUMBERS].to(torch.int64)
        places = torch.arange(start, start + chunk.numel(), device=chunk.device)
        total += int((chunk * (2 * places + 1)).sum())
    return total % 2**64
