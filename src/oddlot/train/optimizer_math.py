"""The arithmetic of the rules: how a direction and what a rule remembers become a step, chunk by chunk."""

from collections.abc import Mapping, Sequence
from math import sqrt

import torch
from torch import Tensor

from oddlot.core.errors import CheckpointError
from oddlot.core.optimizers import SGD, Adam, AdamW, Optimizer
from oddlot.train.vector_ops import mixer, move

Directions = tuple[Sequence[Tensor], Sequence[float]]
"""A direction as the sum of share x tensor."""
Place = tuple[int, slice]
_SMALL_SHARE = 1e-6
"""below it, 1 - (1 - share) has lost digits that float32 would show"""


class Numerics:
    """A rule's arithmetic and memory for some sections, equal to `torch.optim` within rounding.

    One step is within two units in the last place of its terms; SGD multiplies out before it adds.

    `state` names its tensors: `momentum/0` and so on, as long as the section and of its dtype. SGD without
    momentum has none, with momentum it has one for each section, Adam has two. `lr` is the rule's times what a
    schedule makes of it at this step.
    """

    @property
    def linear(self) -> bool:
        """Whether `apply` takes a direction of several tensors; else it takes their sum."""
        return isinstance(self.rule, SGD)

    def __init__(self, rule: Optimizer, sections: Mapping[int, Tensor]) -> None:
        self.rule = rule
        self.lr = rule.lr
        self.state = {
            f"{name}/{index}": torch.zeros_like(section)
            for name in _memories(rule)
            for index, section in sections.items()
        }
        self._mixers = {index: mixer(section) for index, section in sections.items()}

    def begin(self, factor: float = 1.0) -> None:
        """The next step, with so much of the learning rate."""
        self.lr = self.rule.lr * factor

    def apply(
        self, index: int, span: slice, steps: int, *, direction: Directions, source: Tensor, target: Tensor
    ) -> None:
        """The step that has begun, on a chunk of section `index` whose parameters take their `steps`-th one.

        All tensors are that chunk; target may be source. Adam takes a single tensor as direction and uses it up.
        """
        match self.rule:
            case SGD():
                self._sgd(self.rule, (index, span), direction, source, target)
            case _:
                self._adam(self.rule, (index, span), steps, direction, source, target)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a saved memory. CheckpointError when it is not this rule's."""
        if state.keys() != self.state.keys() or any(state[k].shape != v.shape for k, v in self.state.items()):
            raise CheckpointError(
                f"the checkpoint's optimizer memory is {sorted(state)}, {type(self.rule).__name__} needs "
                f"{sorted(self.state)} of the model's size: use the optimizer that the run began with",
                "other_optimizer",
                found=sorted(state),
                needed=sorted(self.state),
            )
        for name, tensor in self.state.items():
            tensor.copy_(state[name])

    def _sgd(self, rule: SGD, place: Place, direction: Directions, source: Tensor, target: Tensor) -> None:
        """All is linear, so every update is read once, straight into the momentum or the weights."""
        index, span = place
        mix = self._mixers[index]
        tensors, shares = list(direction[0]), list(direction[1])
        in_place = source.data_ptr() == target.data_ptr()
        alone = len(shares) == 1 and (shares[0] == 1 or (shares[0] >= _SMALL_SHARE and not rule.nesterov))
        if rule.momentum and alone and in_place and source.dtype == torch.float32:
            _sgd_at_once(rule, self.lr, target, tensors[0], shares[0], self.state[f"momentum/{index}"][span])
            return
        decay = self.lr * rule.weight_decay
        if rule.momentum:
            # PyTorch's first momentum is the first gradient, which is what a memory of zeros gives.
            momentum = self.state[f"momentum/{index}"][span]
            extra = ([source], [rule.weight_decay]) if rule.weight_decay else ([], [])
            mix(momentum, rule.momentum, tensors + extra[0], shares + extra[1])
            if rule.nesterov:
                tensors, shares = [*tensors, momentum], [*shares, rule.momentum]
            else:
                tensors, shares, decay = [momentum], [1.0], 0.0
        move(mix, source, target, 1 - decay, tensors, [-self.lr * share for share in shares])

    def _adam(
        self,
        rule: Adam | AdamW,
        place: Place,
        steps: int,
        direction: Directions,
        source: Tensor,
        target: Tensor,
    ) -> None:
        index, span = place
        ((gradient,), _) = direction
        mean, square = self.state[f"mean/{index}"][span], self.state[f"square/{index}"][span]
        beta1, beta2 = rule.betas
        if isinstance(rule, AdamW):
            torch.mul(source, 1 - self.lr * rule.weight_decay, out=target)
            source = target
        elif rule.weight_decay:
            gradient.add_(source, alpha=rule.weight_decay)
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = torch.sqrt(square, out=gradient).div_(sqrt(1 - beta2**steps)).add_(rule.eps)
        torch.addcdiv(source, mean, root, value=-self.lr / (1 - beta1**steps), out=target)


def _sgd_at_once(
    rule: SGD, lr: float, weights: Tensor, gradient: Tensor, share: float, momentum: Tensor
) -> None:
    """A single gradient in a single pass: `torch.optim.SGD(fused=True)`, without what surrounds it.

    PyTorch's dampening takes away from gradient and decay alike, so the decay is made larger by as much.
    """
    torch._fused_sgd_(
        [weights],
        [gradient],
        [momentum],
        weight_decay=rule.weight_decay / share,
        momentum=rule.momentum,
        lr=lr,
        dampening=1 - share,
        nesterov=rule.nesterov,
        maximize=False,
        is_first_step=False,  # a memory of zeros does what PyTorch's first step does
    )


def _memories(rule: Optimizer) -> Sequence[str]:
    if isinstance(rule, SGD):
        return ("momentum",) if rule.momentum else ()
    return ("mean", "square")
