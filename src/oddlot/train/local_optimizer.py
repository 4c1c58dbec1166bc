"""The optimizer of local steps, with the settings of the hub's optimizer."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from oddlot.core.optimizers import SGD, Adam, AdamW, Optimizer
from oddlot.core.support.errors import JobError
from oddlot.core.tasks import Task
from oddlot.model.torch_steps import adam_step, sgd_step, step_count
from oddlot.train.learning_rates import Rates


class LocalOptimizer:
    """Makes the same steps as the optimizers of `torch.optim` with the same names, bit for bit.

    `groups` has the parameters of each rule.
    """

    def __init__(self, groups: Sequence[tuple[Optimizer, Sequence[Tensor]]]) -> None:
        self.rules = [rule for rule, _ in groups]
        self.param_groups: list[dict[str, Any]] = [
            {"params": parameters, "lr": rule.lr} for rule, parameters in groups
        ]
        self.memory: dict[int, tuple[Tensor, ...]] = {}
        """State of each parameter that had a gradient, by its id: momentum, or mean, square and number of steps."""

    @torch.no_grad()
    def step(self) -> None:
        """Make one step on all parameters that have a gradient."""
        for rule, group in zip(self.rules, self.param_groups, strict=True):
            parameters = [one for one in group["params"] if one.grad is not None]
            if not parameters:
                continue
            gradients = [one.grad for one in parameters]
            if isinstance(rule, SGD):
                self._sgd(rule, group["lr"], parameters, gradients)
            elif isinstance(rule, Adam | AdamW):
                self._adam(rule, group["lr"], parameters, gradients)

    def _sgd(self, rule: SGD, lr: float, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        is_sparse = any(one.is_sparse for one in gradients)
        if rule.weight_decay and is_sparse:
            message = "SGD with weight_decay does not support sparse gradients: set weight_decay=0, or use sparse=False"
            raise JobError(message, "sparse_gradients", rule="SGD")
        momenta = [self.memory[id(one)][0] if id(one) in self.memory else None for one in parameters]
        sgd_step(rule, lr, parameters, gradients, momenta, is_sparse=is_sparse)
        self.memory |= {
            id(one): (momentum,)
            for one, momentum in zip(parameters, momenta, strict=True)
            if momentum is not None
        }

    def _adam(self, rule: Adam | AdamW, lr: float, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        if any(one.is_sparse for one in gradients):
            name = type(rule).__name__
            message = f"{name} does not support sparse gradients: use Adam without weight_decay"
            raise JobError(message, "sparse_gradients", rule=name)
        for one in parameters:
            if id(one) not in self.memory:
                self.memory[id(one)] = (torch.zeros_like(one), torch.zeros_like(one), step_count(0))
        means, squares, steps = zip(*(self.memory[id(one)] for one in parameters), strict=True)
        adam_step(rule, lr, parameters, gradients, list(means), list(squares), list(steps))


def local_optimizer(
    groups: Sequence[tuple[Optimizer, Sequence[Tensor]]],
) -> torch.optim.Optimizer | LocalOptimizer:
    """Return the local optimizer of these rules and their parameters. For Adam with sparse gradients, this is a
    `LazyAdam`.

    Raise JobError if a rule is a user-defined optimizer. Such optimizers work only at the hub.
    """
    for rule, _ in groups:
        if not isinstance(rule, SGD | Adam | AdamW):
            name = type(rule).__name__
            message = f"{name} works only at the hub, but this strategy makes local steps: set Job(local_optimizer=...)"
            raise JobError(message, "no_local_optimizer", optimizer=name)
    (rule, parameters), *others = groups
    sparse = any(one.grad is not None and one.grad.is_sparse for one in parameters)
    if sparse and isinstance(rule, Adam) and not rule.weight_decay and not others:
        from oddlot.sparse.lazy_adam import LazyAdam

        return LazyAdam(parameters, rule.lr, rule.betas, rule.eps)
    return LocalOptimizer(groups)


def made(
    make: Callable[[Iterable[Tensor]], torch.optim.Optimizer], parameters: Sequence[Tensor]
) -> torch.optim.Optimizer:
    """Return `make(parameters)`. Raise JobError if it is not an optimizer, or needs a closure (LBFGS)."""
    optimizer = make(parameters)
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


class LocalRates:
    """Sets the learning rates of an optimizer by the job's rates.

    The rates of a local optimizer of the user, with groups of its own, change by the same factor as the first group's.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | LocalOptimizer,
        rates: Rates,
        rules: Sequence[Optimizer],
        task: Task,
    ) -> None:
        assert task.merged is not None, "tasks have it if there is a schedule"
        if not all("lr" in group for group in optimizer.param_groups):
            raise JobError(
                f"{type(optimizer).__name__} has no lr for lr_schedule: leave lr_schedule out, or use another "
                "local_optimizer",
                "optimizer_without_rate",
                optimizer=type(optimizer).__name__,
            )
        self.rates, self.merged, self.version = rates, task.merged, task.version
        self.groups = optimizer.param_groups
        # As in PyTorch's schedulers, because the rates of a kept optimizer were already changed.
        self.initial = [group.setdefault("initial_lr", group["lr"]) for group in self.groups]
        self.own = None if isinstance(optimizer, LocalOptimizer) else rules[0].lr

    def advance(self, samples: int) -> None:
        """Set the learning rates for the next step, on this number of samples."""
        rates = self.rates(self.merged, self.version)
        for at, (group, initial) in enumerate(zip(self.groups, self.initial, strict=True)):
            if self.own is None:
                group["lr"] = rates[at]
            else:
                group["lr"] = initial * (rates[0] / self.own if self.own else 1.0)
        self.merged += samples
