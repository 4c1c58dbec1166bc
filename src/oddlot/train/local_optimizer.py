"""The optimizer of local steps, with the settings of the hub's optimizer."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from oddlot.core.optimizers import SGD, Adam, AdamW, Optimizer
from oddlot.core.support.errors import JobError


class LocalOptimizer:
    """Makes the same steps as the optimizer of `torch.optim` with the same name, bit for bit.

    It calls the functions of `torch.optim`. The classes would import PyTorch's compiler on first use, for several
    seconds during a task.
    """

    def __init__(self, rule: SGD | Adam | AdamW, parameters: Sequence[Tensor]) -> None:
        self.rule = rule
        self.param_groups: list[dict[str, Any]] = [{"params": parameters, "lr": rule.lr}]
        self.memory: dict[int, tuple[Tensor, ...]] = {}
        """State of each parameter that had a gradient, by index: momentum, or mean, square and number of steps."""

    @torch.no_grad()
    def step(self) -> None:
        """Make one step on all parameters that have a gradient."""
        (group,) = self.param_groups
        there = [(place, one) for place, one in enumerate(group["params"]) if one.grad is not None]
        if not there:
            return
        places, parameters = zip(*there, strict=True)
        gradients = [one.grad for one in parameters]
        if isinstance(self.rule, SGD):
            self._sgd(self.rule, places, list(parameters), gradients, group["lr"])
        else:
            self._adam(self.rule, places, list(parameters), gradients, group["lr"])

    def _sgd(
        self, rule: SGD, places: Sequence[int], parameters: list[Tensor], gradients: list[Tensor], lr: float
    ) -> None:
        if rule.weight_decay and any(one.is_sparse for one in gradients):
            message = "SGD with weight_decay does not support sparse gradients: set weight_decay=0, or use sparse=False"
            raise JobError(message, "sparse_gradients", rule="SGD")
        momenta = [self.memory[place][0] if place in self.memory else None for place in places]
        sgd(
            parameters,
            gradients,
            momenta,
            has_sparse_grad=any(one.is_sparse for one in gradients),
            weight_decay=rule.weight_decay,
            momentum=rule.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=rule.nesterov,
            maximize=False,
        )
        self.memory |= {place: (one,) for place, one in zip(places, momenta, strict=True) if one is not None}

    def _adam(
        self,
        rule: Adam | AdamW,
        places: Sequence[int],
        parameters: list[Tensor],
        gradients: list[Tensor],
        lr: float,
    ) -> None:
        if any(one.is_sparse for one in gradients):
            name = type(rule).__name__
            message = f"{name} does not support sparse gradients: use Adam without weight_decay"
            raise JobError(message, "sparse_gradients", rule=name)
        counts = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
        for place, one in zip(places, parameters, strict=True):
            if place not in self.memory:
                self.memory[place] = (
                    torch.zeros_like(one),
                    torch.zeros_like(one),
                    torch.tensor(0.0, dtype=counts, device="cpu"),
                )
        means, squares, steps = zip(*(self.memory[place] for place in places), strict=True)
        step = adamw if isinstance(rule, AdamW) else adam
        step(
            parameters,
            gradients,
            list(means),
            list(squares),
            [],
            list(steps),
            amsgrad=False,
            beta1=rule.betas[0],
            beta2=rule.betas[1],
            lr=lr,
            weight_decay=rule.weight_decay,
            eps=rule.eps,
            maximize=False,
            has_complex=any(one.is_complex() for one in parameters),
        )


def local_optimizer(rule: Optimizer, parameters: Iterable[Tensor]) -> torch.optim.Optimizer | LocalOptimizer:
    """Return the local optimizer of a rule. For Adam with sparse gradients, this is a `LazyAdam`.

    Raise JobError if the rule is a user-defined optimizer. Such optimizers work only at the hub.
    """
    parameters = list(parameters)
    if not isinstance(rule, SGD | Adam | AdamW):
        name = type(rule).__name__
        message = (
            f"{name} works only at the hub, but this strategy makes local steps: set Job(local_optimizer=...)"
        )
        raise JobError(message, "no_local_optimizer", optimizer=name)
    sparse = any(one.grad is not None and one.grad.is_sparse for one in parameters)
    if sparse and isinstance(rule, Adam) and not rule.weight_decay:
        from oddlot.sparse.lazy_adam import LazyAdam

        return LazyAdam(parameters, rule.lr, rule.betas, rule.eps)
    return LocalOptimizer(rule, parameters)


def made(
    make: Callable[[Sequence[Tensor]], torch.optim.Optimizer | LocalOptimizer], parameters: Sequence[Tensor]
) -> torch.optim.Optimizer | LocalOptimizer:
    """Return `make(parameters)`. Raise JobError if it is not an optimizer, or needs a closure (LBFGS)."""
    optimizer = make(parameters)
    if isinstance(optimizer, LocalOptimizer):
        return optimizer
    kind = type(optimizer).__name__
    if not hasattr(optimizer, "step") or isinstance(optimizer, type):
        message = f"local_optimizer(parameters) must return an optimizer, not {kind}"
        raise JobError(message, "not_an_optimizer", type=kind)
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        message = f"local_optimizer returned {kind}, which needs a closure; oddlot calls step() without one"
        raise JobError(f"{message}. Use another optimizer", "optimizer_needs_closure", optimizer=kind)
    return optimizer


def set_mode(optimizer: torch.optim.Optimizer | LocalOptimizer, mode: str) -> bool:
    """Call `optimizer.train()` or `optimizer.eval()`. Return False if the optimizer has no such modes.

    Schedule-free optimizers train with other weights than the weights to evaluate and send.
    """
    modes = [getattr(optimizer, name, None) for name in ("train", "eval")]
    if not all(map(callable, modes)):
        return False
    getattr(optimizer, mode)()
    return True
