"""Errors for objects of a PyTorch training loop that a Job does not accept, such as a GradScaler."""

import inspect
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from oddlot.core.optimizers import SGD, Adam, AdamW
from oddlot.core.support.errors import UnknownName, UsageError
from oddlot.core.support.user_code import used_by

RULES = {kind.__name__: kind for kind in (SGD, Adam, AdamW)}
"""The hub's optimizers, by the names of PyTorch's optimizers."""


def check_not_from_torch(job: Any) -> None:
    """Raise UsageError if the job has a PyTorch optimizer or scheduler, or its functions use a GradScaler.

    The error names the object to pass instead.
    """
    if instead := _is_of(job.optimizer, torch.optim.Optimizer):
        raise _optimizer_given(job.optimizer, instead)
    if isinstance(job.local_optimizer, torch.optim.Optimizer):
        kind = type(job.local_optimizer).__name__
        message = (
            f"local_optimizer = {kind} is an optimizer, not a function. Pass a function that makes one for a worker's "
            f"model: local_optimizer=lambda parameters: torch.optim.{kind}(parameters, lr=...)"
        )
        raise UsageError(message, "torch_object_given", "local_optimizer", name="local_optimizer", type=kind)
    for name in ("lr_schedule", "lr_scheduler"):
        if kind := _is_of(getattr(job, name), LRScheduler):
            message = (
                f"{name} = {kind} is a scheduler of an optimizer. Pass a function that makes one: "
                f"lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.{kind}(optimizer, ...). For a step after "
                'each minibatch instead of each epoch, set lr_scheduler_every="version"'
            )
            raise UsageError(message, "torch_object_given", name, name=name, type=kind)
    for name in ("loss", "training_step", "direction"):
        _check_not_scaled(name, getattr(job, name))


def _check_not_scaled(name: str, function: Any) -> None:
    for path, value in used_by(function, name):
        if isinstance(value, torch.amp.GradScaler) and value.is_enabled():
            message = (
                f"{path} is a GradScaler. oddlot makes the steps and does not unscale gradients, so they would be too "
                'large. Return the loss without scale() and autocast, and set Job(precision="fp16") or "bf16"'
            )
            raise UsageError(message, "torch_object_given", name, name=name, type="GradScaler", path=path)


OTHER_NAMES = {
    "num_workers": "load_workers",
    "collate_fn": "collate",
    "worker_init_fn": "load_worker_init",
    "dataset": "train_data",
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate_grad_batches"), "micro_batch_size"),
    **dict.fromkeys(("gradient_clip_val", "clip_grad_norm"), "max_grad_norm"),
    **dict.fromkeys(("fp16", "bf16", "amp"), "precision"),
    **dict.fromkeys(("scheduler", "lr_scheduler_type"), "lr_scheduler"),
    **dict.fromkeys(("epochs", "max_epochs", "num_train_epochs"), "until"),
    "compute_metrics": "metrics",
    "criterion": "loss",
}
"""Settings of a job, by their names in `DataLoader`, Hugging Face's Trainer, Lightning and scripts."""


def check_names(settings: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise UsageError if a keyword of a job is not in `known`, the names of its settings.

    The error names the setting, or the optimizer that has it.
    """
    for name, own in OTHER_NAMES.items():
        if name in settings:
            message = f"Job has no setting {name!r}: it is {own}. Use Job(..., {own}=...)"
            raise UsageError(message, "unknown_name", name, kind="setting", given=name, nearest=own)
    for name in ("lr", "learning_rate", "momentum", "weight_decay", "nesterov"):
        if name in settings:
            said = f"{'lr' if name == 'learning_rate' else name}={settings[name]!r}"
            message = f"Job has no setting {name!r}: the optimizer has it. Use Job(..., optimizer=oddlot.SGD({said}))"
            raise UsageError(message, "unknown_name", name, kind="setting", given=name, nearest="optimizer")
    for name in settings:
        if name not in known:
            raise UnknownName("setting of a Job", name, known, key=name)


def _is_of(value: object, base: type) -> str:
    """Return the name of the class if the value is a subclass of `base` or an instance of one; empty otherwise."""
    kind = value if isinstance(value, type) else type(value)
    return kind.__name__ if issubclass(kind, base) else ""


def _optimizer_given(optimizer: Any, kind: str) -> UsageError:
    rule = RULES.get(kind)
    if rule is None:
        instead = (
            "Pass oddlot.SGD, oddlot.Adam or oddlot.AdamW; for local steps (oddlot.LocalSGD and others), "
            f"local_optimizer=lambda parameters: torch.optim.{kind}(parameters, lr=...)"
        )
    else:
        instead = (
            f"Pass a function that makes it for the job's model: optimizer=lambda model: torch.optim.{kind}("
            f"model.parameters(), lr=...). Or pass oddlot.{_as_rule(rule, optimizer)}"
        )
    message = f"optimizer = {kind} is a torch.optim optimizer. {instead}"
    return UsageError(message, "torch_object_given", "optimizer", name="optimizer", type=kind)


def _as_rule(rule: type, optimizer: Any) -> str:
    """Return the call that creates a rule with the optimizer's settings. Default values are left out."""
    if inspect.isclass(optimizer):
        return f"{rule.__name__}(lr=...)"
    begins, given = rule(), optimizer.defaults
    message = {f.name: given[f.name] for f in fields(rule) if f.name in given}
    words = [
        f"{name}={value!r}"
        for name, value in message.items()
        if value != getattr(begins, name) or name == "lr"
    ]
    return f"{rule.__name__}({', '.join(words)})"
