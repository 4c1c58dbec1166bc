"""The forward and backward passes of a step: autocast, loss scaling and gradients summed over the parts of a batch."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any, Self

import torch
from torch import Tensor, nn

from oddlot.core.support.errors import JobError
from oddlot.train.batch_loss import BatchLoss, check_direction
from oddlot.train.job import Job, without_compiler

FIRST_SCALE, GROWTH_STEPS = 2.0**16, 2000
"""Initial loss scale, and steps without an overflow until it is doubled, as in `torch.amp.GradScaler`."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(slots=True)
class Losses:
    """The mean losses over parts of batches, with their weights."""

    weight: int = 0
    """Sum of the weights."""
    _sum: float = 0.0
    _sums: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, loss: BatchLoss, samples: int) -> Self:
        """Return the losses of a part with this number of samples. A part with weight 0 counts as nothing."""
        weight = samples if loss.weight is None else loss.weight
        if not weight:
            return cls()
        return cls(
            weight, loss.mean.item() * weight, {name: one * weight for name, one in loss.others.items()}
        )

    def add(self, other: "Losses") -> None:
        """Add the losses of other parts."""
        self.weight += other.weight
        self._sum += other._sum
        self._sums = {
            name: self._sums.get(name, 0.0) + other._sums.get(name, 0.0) for name in self._sums | other._sums
        }

    @property
    def mean(self) -> float | None:
        """Mean loss. None if it is not finite, or if all weights are 0."""
        mean = self._sum / self.weight if self.weight else nan
        return mean if isfinite(mean) else None

    @property
    def others(self) -> dict[str, float]:
        """Means of the further losses, by name. Values that are not finite are left out."""
        means = {name: one / self.weight for name, one in self._sums.items()}
        return {name: mean for name, mean in means.items() if isfinite(mean)}


@dataclass(slots=True)
class _Sum:
    """The weights of the parts of a step."""

    samples: int
    """Samples of the step."""
    done: int = 0
    """Samples of the parts so far."""
    weight: int = 0
    """Sum of the weights so far. A weight is the number of samples unless the job's loss returns it."""
    is_sum: bool = False
    """Whether the gradients are a sum over the weights, not a mean."""
    by_weight: bool = False
    """Whether the job's loss returns weights."""

    def add(self, weight: int | None, samples: int) -> None:
        """Add a part."""
        self.done += samples
        self.weight += samples if weight is None else weight
        if samples != self.samples:
            self.by_weight = weight is not None

    def part(self, loss: Tensor, weight: int | None, samples: int) -> Tensor:
        """Return the loss of a part for the backward pass, or the summand of a part's direction.

        As in scripts, the loss is divided before the backward pass if its share of the step is known.
        """
        if self.is_sum:
            return loss * (samples if weight is None else weight)
        if samples == self.samples:
            return loss
        return loss / (self.samples / samples) if weight is None else loss * weight

    @property
    def divisor(self) -> float:
        """Number to divide the summed gradients by. Below 1 if the step was stopped before its last part."""
        if self.is_sum:
            return 1.0
        return float(self.weight) if self.by_weight else self.done / self.samples


class _LossScale:
    """The factor on losses with fp16, so that small gradients are not rounded to 0."""

    def __init__(self) -> None:
        self.scale = FIRST_SCALE
        self._steps = 0
        self._before: float | None = None
        """Scale before the step that is computed again. None if the last step is finished."""

    def unscale(self, gradients: Sequence[Tensor]) -> bool:
        """Remove the scale from gradients. Return False, and halve the scale, if a gradient is not finite.

        With a scale of 1, a gradient that is not finite is a fault of the job or its data. The scale is then the same
        as before the step.
        """
        is_finite = all(bool(torch.isfinite(norm)) for norm in torch._foreach_norm(list(gradients)))
        if not is_finite and self.scale > 1:
            self._before = self._before or self.scale
            self.scale, self._steps = self.scale / 2, 0
            return False
        torch._foreach_mul_(list(gradients), 1 / self.scale)
        if not is_finite:
            self.scale = self._before or self.scale
        self._before = None
        self._steps += is_finite
        if self._steps == GROWTH_STEPS:
            self.scale, self._steps = 2 * self.scale, 0
        return True


class Stepper:
    """Computes the gradients of steps, as `grad` of the parameters.

    A step has one or more parts. Call `begin`, then `forward` and `backward` for each part, then `end`. The model may
    be compiled. `_scale` is kept between steps, and lost with the worker.
    """

    def __init__(
        self, job: Job, model: nn.Module, parameters: Sequence[Tensor], device: torch.device
    ) -> None:
        self.job, self.model, self.parameters, self.device = job, model, parameters, device
        self._scale = _LossScale() if job.precision == "fp16" else None
        self._sum = _Sum(0)
        trained = {id(each) for each in parameters}
        own = without_compiler(model).named_parameters()
        self._named = {name: each for name, each in own if id(each) in trained}
        """The trainable parameters by name."""

    @property
    def weight(self) -> int:
        """Sum of the weights of the step's parts."""
        return self._sum.weight

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of forward passes in the job's precision."""
        if self.job.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, DTYPES[self.job.precision])

    def begin(self, samples: int, *, is_sum: bool = False) -> None:
        """Start a step of this number of samples. With `is_sum`, its gradients are a sum over weights, not a mean."""
        self._sum = _Sum(samples, is_sum=is_sum)
        for parameter in self.parameters:
            parameter.grad = None

    def forward(self, batch: Any) -> BatchLoss:
        """Return the loss of a part, with its autograd graph."""
        with self.autocast():
            return self.job.weighted_loss(self.model, batch)

    def backward(self, given: BatchLoss, samples: int) -> None:
        """Add the gradient of a part, or its direction."""
        if given.direction is not None:
            self._add_direction(given.direction, samples)
            return
        loss, weight = given.mean, given.weight
        if not loss.requires_grad:
            raise JobError(
                "the loss does not depend on a trainable parameter: compute it from the model's outputs, without "
                ".detach() or torch.no_grad(), and with requires_grad=True for at least one parameter",
                "loss_without_gradient",
            )
        if not self._sum.done and any(each.grad is not None for each in self.parameters):
            raise JobError(
                "training_step or loss computed gradients itself, and they would count twice: return the loss without "
                "calling backward()",
                "backward_in_step",
            )
        self._sum.add(weight, samples)
        loss = self._sum.part(loss, weight, samples)
        if self._scale is not None:
            loss = loss * self._scale.scale
        loss.backward()  # type: ignore[no-untyped-call]  # PyTorch's

    def _add_direction(self, direction: Mapping[str, Tensor], samples: int) -> None:
        """Add the direction of a part to the gradients. Raise JobError, before any change, if a tensor is invalid."""
        check_direction(direction, self._named)
        self._sum.add(None, samples)
        for name, tensor in direction.items():
            parameter = self._named[name]
            if not parameter.requires_grad:  # it is frozen until a later epoch
                continue
            part = self._sum.part(tensor.detach(), None, samples)
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter).copy_(part)  # the job keeps its tensor
            else:
                parameter.grad.add_(part)

    def end(self) -> bool:
        """Finish the gradients of a step.

        Return False if a gradient with fp16 has overflowed. The step must then be computed again, with a smaller scale.
        """
        gradients = [each.grad for each in self.parameters if each.grad is not None]
        if not gradients:  # every loss was a constant
            return True
        if self._scale is not None and not self._scale.unscale(gradients):
            return False
        if self._sum.divisor != 1:
            torch._foreach_div_(gradients, self._sum.divisor)
        return True
