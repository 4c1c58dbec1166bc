"""The arithmetic of the hub's optimizers, chunk by chunk."""

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Protocol

import torch
from torch import Tensor

from oddlot.core.optimizers import SGD, Adam, AdamW, Optimizer, ParameterGroups
from oddlot.core.support.errors import CheckpointError, UsageError
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.model.torch_steps import adam_step, sgd_step, step_count
from oddlot.model.vector_ops import mixer, move

Directions = tuple[Sequence[Tensor], Sequence[float]]
"""A direction as tensors and shares. It is the sum of share x tensor."""
Sections = Mapping[int, Tensor]
"""Trainable sections by their index, each a 1-D tensor."""
_SMALL_SHARE = 1e-6
"""Share below which 1 - (1 - share) is inaccurate in float32."""


class HubOptimizer(Protocol):
    """The arithmetic and the state of an optimizer at the hub, for the sections of one parameter group.

    Each merge calls `begin` once, then `apply` once for each chunk of the sections.
    """

    @property
    def state(self) -> Mapping[str, Tensor]:
        """Tensors of the state, by name. Checkpoints save them, and a resumed run copies into them."""

    @property
    def linear(self) -> bool:
        """Whether `apply` accepts a direction of several tensors. False: it gets their sum."""

    def begin(self, lr: float) -> None:
        """Start the next step, with this learning rate."""

    def apply(
        self, index: int, span: slice, steps: int, *, direction: Directions, source: Tensor, target: Tensor
    ) -> None:
        """Write the step from `source` into `target`, for the chunk `span` of section `index`.

        All tensors have the size of the chunk. `target` may be `source`. `steps` is the number of this step for the
        parameters of the chunk, from 1. Unless the optimizer is linear, the direction is a single tensor with share 1,
        and may be overwritten.
        """


def hub_optimizer(optimizer: Optimizer, sections: Sections) -> HubOptimizer:
    """Return the arithmetic of an optimizer for these sections.

    Raise UsageError if it is not a dataclass or has no `hub_optimizer`.
    """
    match optimizer:
        case SGD():
            return HubSGD(optimizer, sections)
        case Adam() | AdamW():
            return HubAdam(optimizer, sections)
    _check_dataclass(optimizer)
    made: HubOptimizer = optimizer.hub_optimizer(sections)
    return made


def _check_dataclass(optimizer: object) -> None:
    if not is_dataclass(optimizer):
        name = type(optimizer).__name__
        message = f"the optimizer {name} must be a dataclass: add @dataclass to its class"
        raise UsageError(message, "no_dataclass", "optimizer", given=name)


def memory(sections: Sections, *names: str) -> dict[str, Tensor]:
    """Return zeros like each section for each of these names, such as `momentum/0` and `momentum/1`."""
    return {f"{name}/{index}": torch.zeros_like(part) for name in names for index, part in sections.items()}


class HubSGD:
    """`SGD` at the hub.

    A step with a single direction of share 1 has the bits of `torch.optim.SGD`. Other steps equal it within two units
    in the last place of their terms. Without momentum there is no state.
    """

    linear = True

    def __init__(self, optimizer: SGD, sections: Sections) -> None:
        self.optimizer = optimizer
        self.lr = optimizer.lr
        self.state = memory(sections, "momentum") if optimizer.momentum else {}
        self._mixers = {index: mixer(section) for index, section in sections.items()}

    def begin(self, lr: float) -> None:
        """Start the next step, with this learning rate."""
        self.lr = lr

    def apply(
        self, index: int, span: slice, steps: int, *, direction: Directions, source: Tensor, target: Tensor
    ) -> None:
        """Write the step. Every update is read once, and added directly to the momentum or the weights."""
        sgd, mix = self.optimizer, self._mixers[index]
        tensors, shares = list(direction[0]), list(direction[1])
        in_place = source.data_ptr() == target.data_ptr()
        if shares == [1]:
            momenta = [self.state[f"momentum/{index}"][span] if sgd.momentum else None]
            if not in_place:
                target.copy_(source)
            sgd_step(sgd, self.lr, [target], tensors, momenta)
            return
        alone = len(shares) == 1 and shares[0] >= _SMALL_SHARE and not sgd.nesterov
        if sgd.momentum and alone and in_place and source.dtype == torch.float32:
            _sgd_at_once(sgd, self.lr, target, tensors[0], shares[0], self.state[f"momentum/{index}"][span])
            return
        decay = self.lr * sgd.weight_decay
        if sgd.momentum:
            # An initial momentum of zeros gives PyTorch's first momentum, the first gradient.
            momentum = self.state[f"momentum/{index}"][span]
            extra = ([source], [sgd.weight_decay]) if sgd.weight_decay else ([], [])
            mix(momentum, sgd.momentum, tensors + extra[0], shares + extra[1])
            if sgd.nesterov:
                tensors, shares = [*tensors, momentum], [*shares, sgd.momentum]
            else:
                tensors, shares, decay = [momentum], [1.0], 0.0
        move(mix, source, target, 1 - decay, tensors, [-self.lr * share for share in shares])


def _sgd_at_once(
    sgd: SGD, lr: float, weights: Tensor, gradient: Tensor, share: float, momentum: Tensor
) -> None:
    """Make a step with a single gradient in a single pass, with the function of `torch.optim.SGD(fused=True)`.

    PyTorch's dampening scales both gradient and decay, so the decay is divided by the share. Unlike the class in
    `torch.optim`, this function accepts a negative momentum.
    """
    torch._fused_sgd_(
        [weights],
        [gradient],
        [momentum],
        weight_decay=sgd.weight_decay / share,
        momentum=sgd.momentum,
        lr=lr,
        dampening=1 - share,
        nesterov=sgd.nesterov,
        maximize=False,
        is_first_step=False,  # with a momentum of zeros, the result equals PyTorch's first step
    )


class HubAdam:
    """`Adam` and `AdamW` at the hub, with the bits of `torch.optim`."""

    linear = False

    def __init__(self, optimizer: Adam | AdamW, sections: Sections) -> None:
        self.optimizer = optimizer
        self.lr = optimizer.lr
        self.state = memory(sections, "mean", "square")

    def begin(self, lr: float) -> None:
        """Start the next step, with this learning rate."""
        self.lr = lr

    def apply(
        self, index: int, span: slice, steps: int, *, direction: Directions, source: Tensor, target: Tensor
    ) -> None:
        """Write the step. The bias correction uses `steps`."""
        mean, square = self.state[f"mean/{index}"][span], self.state[f"square/{index}"][span]
        earlier = step_count(steps - 1)
        if source.data_ptr() != target.data_ptr():
            target.copy_(source)
        adam_step(self.optimizer, self.lr, [target], list(direction[0]), [mean], [square], [earlier])


class GroupOptimizers:
    """The hub's optimizers, one for each parameter group of the weights.

    `optimizers` is one optimizer for all groups, or `ParameterGroups`, or a mapping from group to optimizer. Raise
    UsageError if a group has no optimizer.
    """

    def __init__(self, optimizers: Optimizer | Mapping[int, Optimizer], weights: FlatBuffer) -> None:
        groups: dict[int, dict[int, Tensor]] = {}
        for index in weights.layout.of_role("trainable"):
            groups.setdefault(weights.layout.sections[index].group, {})[index] = weights.section(index)
        if isinstance(optimizers, ParameterGroups):
            optimizers = optimizers.by_group
        elif not isinstance(optimizers, Mapping):
            optimizers = dict.fromkeys(groups, optimizers)
        if missing := sorted(groups.keys() - optimizers.keys()):
            message = f"parameter groups {missing} have no optimizer; groups with one: {sorted(optimizers)}"
            raise UsageError(message, "group_without_optimizer", groups=missing)
        self._name = " and ".join(dict.fromkeys(type(optimizers[group]).__name__ for group in groups))
        self.rates = {group: optimizers[group].lr for group in groups}
        """Learning rate of each group, without a schedule."""
        self._by_group = {group: hub_optimizer(optimizers[group], parts) for group, parts in groups.items()}
        self.by_section = {index: self._by_group[group] for group, parts in groups.items() for index in parts}
        """Optimizer of each trainable section, by index."""

    @property
    def state(self) -> dict[str, Tensor]:
        """State of the optimizers, by group and name, such as `0/momentum/0`."""
        return {
            f"{group}/{name}": tensor
            for group, one in self._by_group.items()
            for name, tensor in one.state.items()
        }

    def begin(self, rates: Mapping[int, float] | None = None) -> None:
        """Start the next step of every group. Groups without a learning rate in `rates` have their own."""
        for group, one in self._by_group.items():
            one.begin((rates or self.rates).get(group, self.rates[group]))

    def lr_factor(self, rates: Mapping[int, float] | None) -> float:
        """Return the first group's learning rate in `rates`, relative to its own."""
        group, own = min(self.rates.items())
        return 1.0 if rates is None or not own else rates[group] / own

    def fits(self, saved: Mapping[str, Tensor]) -> bool:
        """Return whether a saved state has the tensors and shapes of these optimizers."""
        state = self.state
        return saved.keys() == state.keys() and all(saved[k].shape == v.shape for k, v in state.items())

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Copy a saved state into the optimizers. Raise CheckpointError if it belongs to other optimizers."""
        state = self.state
        if not self.fits(saved):
            raise CheckpointError(
                f"the checkpoint's optimizer state has {sorted(saved)}, but {self._name} needs {sorted(state)} of the "
                "model's size: use the optimizer that the run started with",
                "other_optimizer",
                found=sorted(saved),
                needed=sorted(state),
            )
        for name, tensor in state.items():
            tensor.copy_(saved[name])
