"""The learning rates of a job's parameter groups, from its schedule or from a scheduler of PyTorch."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import OneCycleLR

from oddlot.core.optimizers import SGD, Adam, AdamW, Optimizer, ParameterGroups
from oddlot.core.support.errors import JobError, UsageError
from oddlot.core.support.user_code import trace_of
from oddlot.train.lr_schedules import Schedule, factor_at

if TYPE_CHECKING:
    from oddlot.train.job import Job

Rates = Callable[[int, int], Mapping[int, float]]
"""`rates(merged, version)`: learning rate of each parameter group, after `merged` samples and `version` merges."""


def rates_of(job: "Job", size: int) -> Rates | None:
    """Return the learning rates of a job with `size` samples per epoch, or None if they are constant."""
    if job.lr_schedule is not None:
        return _by_schedule(job.lr_schedule, rules_of(job.optimizer), size)
    return None if job.lr_scheduler is None else SchedulerRates(job, size)


def rules_of(optimizer: Any) -> tuple[Optimizer, ...]:
    """Return the optimizer of each parameter group."""
    return optimizer.optimizers if isinstance(optimizer, ParameterGroups) else (optimizer,)


def _by_schedule(schedule: Schedule, rules: tuple[Optimizer, ...], size: int) -> Rates:
    """Return the rates of a schedule, a factor on each of them."""

    def rates(merged: int, _: int) -> Mapping[int, float]:
        factor = factor_at(schedule, merged / size)
        return {group: rule.lr * factor for group, rule in enumerate(rules)}

    return rates


class SchedulerRates:
    """The rates of a scheduler of PyTorch, which changes an optimizer without parameters of the model.

    Its steps are the versions of the hub, the complete epochs or, for `ReduceLROnPlateau`, the evaluations.
    """

    def __init__(self, job: "Job", size: int) -> None:
        self.job, self.size = job, size
        self.metric = job.lr_scheduler_metric
        self._interval = 0
        """Newest interval with an evaluation."""
        self._start()

    def __call__(self, merged: int, version: int) -> Mapping[int, float]:
        """Return the learning rate of each parameter group."""
        if not self.follows_metric:
            steps = version if self.job.lr_scheduler_every == "version" else merged // self.size
            if isinstance(self._scheduler, OneCycleLR):  # later steps raise, so it keeps its last rate
                steps = min(steps, self._scheduler.total_steps - 1)
            if steps < self._steps:
                self._start()
            while self._steps < steps:
                self._step()
        return {group: float(each["lr"]) for group, each in enumerate(self._optimizer.param_groups)}

    def evaluated(self, metrics: Mapping[str, float], interval: int) -> None:
        """Record the first evaluation of an interval. A metric that is not finite is missing, and is skipped.

        A run also evaluates when it ends and after a resume. These evaluations may be of an earlier interval.
        """
        is_new, self._interval = interval > self._interval, max(interval, self._interval)
        if is_new and self.follows_metric and self.metric in metrics:
            self._step(metrics[self.metric])

    @property
    def follows_metric(self) -> bool:
        """Whether the scheduler is a `ReduceLROnPlateau`."""
        return isinstance(self._scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)

    @property
    def planned_steps(self) -> int | None:
        """Number of steps that the scheduler is made for. None if it has no such number."""
        names = ("total_steps", "T_max")
        return next(
            (int(getattr(self._scheduler, name)) for name in names if hasattr(self._scheduler, name)), None
        )

    def _start(self) -> None:
        self._steps, self._optimizer = 0, _without_model(rules_of(self.job.optimizer))
        before = self._others()
        make = self.job.lr_scheduler
        assert make is not None
        try:
            self._scheduler: Any = make(self._optimizer)
        except Exception as error:
            raise _failed(error) from error
        made: object = self._scheduler
        if not isinstance(made, torch.optim.lr_scheduler.LRScheduler):
            kind = type(self._scheduler).__name__
            message = (
                f"lr_scheduler(optimizer) must return a scheduler of torch.optim.lr_scheduler, not {kind}"
            )
            raise UsageError(message, "not_a_scheduler", "lr_scheduler", type=kind)
        self._optimizer.step()  # PyTorch warns of a scheduler that steps before its optimizer
        self._check_others(before)

    def _step(self, *metric: float) -> None:
        before = self._others()
        try:
            self._scheduler.step(*metric)
        except Exception as error:
            raise _failed(error) from error
        self._check_others(before)
        self._steps += 1

    def _others(self) -> list[dict[str, Any]]:
        """Return the settings that only OneCycleLR and CyclicLR change."""
        names = ("momentum", "betas")
        return [{name: each.get(name) for name in names} for each in self._optimizer.param_groups]

    def _check_others(self, before: list[dict[str, Any]]) -> None:
        if self._others() != before:
            name = type(self._scheduler).__name__
            message = f"{name} changes the momentum, but lr_scheduler may change only learning rates"
            raise UsageError(
                f"{message}: pass cycle_momentum=False",
                "scheduler_changes_momentum",
                "lr_scheduler",
                type=name,
            )


def _without_model(rules: Iterable[Optimizer]) -> torch.optim.Optimizer:
    """Return PyTorch's optimizer with these settings, and one parameter per group."""
    groups: list[dict[str, Any]] = []
    kind: Any = torch.optim.SGD
    for rule in rules:
        group: dict[str, Any] = {"params": [torch.zeros(1, requires_grad=True)], "lr": rule.lr}
        if isinstance(rule, SGD):
            group |= {"momentum": rule.momentum}
        elif isinstance(rule, Adam | AdamW):
            kind = torch.optim.AdamW if isinstance(rule, AdamW) else torch.optim.Adam
            group |= {"betas": tuple(rule.betas)}
        groups.append(group)
    made: torch.optim.Optimizer = kind(groups, lr=groups[0]["lr"])
    return made


def _failed(error: Exception) -> JobError:
    reason = trace_of(error)
    return JobError(
        f"lr_scheduler failed:\n{reason}", "user_code_failed", where="lr_scheduler", reason=reason
    )
