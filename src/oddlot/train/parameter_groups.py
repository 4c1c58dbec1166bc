"""Parameter groups: the settings of an optimizer of `torch.optim` that a job's function makes for its model."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from oddlot.core.optimizers import SGD, Adam, AdamW, Optimizer, ParameterGroups
from oddlot.core.support.errors import JobError, UsageError
from oddlot.core.support.user_code import trace_of

RULES: Mapping[type[torch.optim.Optimizer], type[SGD | Adam | AdamW]] = {
    torch.optim.SGD: SGD,
    torch.optim.Adam: Adam,
    torch.optim.AdamW: AdamW,
}
"""The hub's optimizers, by PyTorch's."""
DECOUPLED = "decoupled_weight_decay"
"""Key of groups of `torch.optim.Adam` that makes them groups of `AdamW`."""
UNUSED = {
    "params", "param_names", "foreach", "fused", "capturable", "differentiable", "initial_lr", DECOUPLED
}  # fmt: skip
"""Keys of groups that are not settings, or change at most the rounding of steps."""
NEUTRAL = {"dampening": (0,), "maximize": (False,), "amsgrad": (False,)}
"""Values of the settings that the hub does not have."""


def parameter_groups(make: Callable[[nn.Module], Any], model: nn.Module) -> Optimizer:
    """Return the optimizer that `make(model)` returns as settings of the hub.

    Trainable parameters that it leaves out are not trained. Raise UsageError if it is not SGD, Adam or AdamW of
    `torch.optim`, has a setting that the hub does not have, or has a parameter that is not in the model or twice.
    """
    try:
        made: object = make(model)
    except Exception as error:
        reason = trace_of(error)
        message = f"optimizer(model) failed. Its argument is the model\n{reason}"
        raise JobError(message, "user_code_failed", where="optimizer", reason=reason) from error
    if isinstance(made, Optimizer):
        return made
    if isinstance(made, tuple | list):
        message = (
            f"optimizer(model) returned {len(made)} optimizers. Losses with an optimizer each, as of a GAN, are not "
            "supported, because a version of the model is one step of one optimizer. Return one optimizer; it may "
            "have several parameter groups"
        )
        raise UsageError(message, "several_optimizers", "optimizer", count=len(made))
    rule = RULES.get(type(made))  # type: ignore[arg-type]  # None for anything else
    if rule is None or not isinstance(made, torch.optim.Optimizer):
        kind = type(made).__name__
        raise UsageError(
            f"optimizer(model) returned {kind}. It must return torch.optim.SGD, Adam or AdamW, or an oddlot.Optimizer. "
            f"For local steps, any optimizer works: local_optimizer=lambda parameters: {kind}(parameters, lr=...)",
            "unknown_optimizer",
            "optimizer",
            type=kind,
        )
    names = _names(model, made)
    optimizers = [_rule(AdamW if group.get(DECOUPLED) else rule, group) for group in made.param_groups]
    trainable = {name for name, each in model.named_parameters() if each.requires_grad}
    if len(optimizers) == 1 and trainable <= {*names[0]}:
        return optimizers[0]
    return ParameterGroups(tuple(optimizers), tuple(names))


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, ...]]:
    """Return the names of the parameters of each group. Frozen parameters are left out."""
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    found = []
    for at, group in enumerate(optimizer.param_groups):
        if any(id(parameter) not in known for parameter in group["params"]):
            message = f"group {at} of the optimizer has a parameter that is not in the model: use model.parameters()"
            raise UsageError(message, "foreign_parameter", "optimizer", group=at)
        found.append(tuple(known[id(each)] for each in group["params"] if each.requires_grad))
        if twice := {name for name in found[-1] if found[-1].count(name) > 1}:
            found_twice = ", ".join(sorted(twice))
            message = (
                f"group {at} of the optimizer has {found_twice} twice, and would step twice: list each once"
            )
            raise UsageError(message, "parameter_twice", "optimizer", group=at, names=sorted(twice))
    return found


def _rule(rule: type[SGD | Adam | AdamW], group: Mapping[str, Any]) -> Optimizer:
    """Return the settings of a group. Raise UsageError for one that the hub does not have."""
    settings = {one.name for one in fields(rule)}
    for name, value in group.items():
        if name in settings or name in UNUSED:
            continue
        if value not in NEUTRAL.get(name, ()):
            message = f"the optimizer has {name}={value!r}, which the hub's {rule.__name__} does not have: leave it out"
            raise UsageError(message, "unknown_optimizer_setting", "optimizer", name=name, value=value)
    given = {name: _plain(group[name]) for name in settings if name in group}
    return rule(**given)


def _plain(value: Any) -> Any:
    """Return a tensor of one number as a number."""
    return value.item() if isinstance(value, torch.Tensor) else value
