"""Evaluation of weights: the loss and the metrics on the evaluation set."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oddlot.core.support.errors import JobError, OddlotError, UsageError
from oddlot.data.batches import Batches, move
from oddlot.data.load_ahead import Loader
from oddlot.data.sample_order import Minibatch
from oddlot.data.seeded_fetch import SeededFetch
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.train.batch_loss import batch_loss
from oddlot.train.job import ROWS, Job
from oddlot.train.learner import Learner
from oddlot.train.sample_failures import minibatch_failed
from oddlot.train.stepper import Losses

IN_EVALUATION = (
    "evaluation_mode",
    (
        "Evaluation calls training_step after model.eval() and under torch.no_grad(). If that is the cause, use "
        "torch.enable_grad() in it, or set Job(loss=...), which evaluation uses instead"
    ),
)
"""Value of the field `hint` of an error, and its text."""
NAMES = ("outputs", "targets")
EVALUATION = -1
"""Epoch in the seeds of an evaluation's samples."""


def evaluate(job: Job, learner: Learner, weights: FlatBuffer) -> dict[str, float]:
    """Return the mean loss, if the job has one, and the metrics of these weights, in evaluation mode.

    Values that are not finite are left out. A metric function is called once, with all outputs and targets on the CPU.
    A metric with `update` gets every batch.
    """
    if job.eval_data is None:
        message = "the strategy needs an evaluation set: set Job(eval_data=...)"
        raise UsageError(message, "no_evaluation_set", "eval_data")
    learner.holds = None
    learner.weights.copy_(weights)
    modes = [(module, module.training) for module in learner.model.modules()]
    learner.model.eval()
    streaming: dict[str, Any] = {
        name: metric for name, metric in job.metrics.items() if hasattr(metric, "update")
    }
    for metric in streaming.values():
        metric.reset()
    with torch.no_grad(), learner.stepper.autocast():
        losses, seen = _look_at_all(job, learner, weights, streaming)
    for module, training in modes:
        module.training = training
    values = (
        losses.others
        | ({} if losses.mean is None else {"loss": losses.mean})
        | _compute(job.metrics, streaming, seen)
    )
    return {name: value for name, value in values.items() if isfinite(value)}


def _look_at_all(
    job: Job, learner: Learner, weights: FlatBuffer, streaming: Mapping[str, Any]
) -> tuple[Losses, list[Any]]:
    """Return the losses and, if there are metric functions, the outputs and targets of every batch."""
    losses, seen = Losses(), []
    data, loader = _loaded(job, learner)
    rows = job.eval_batch_size or max(job.batch_size, ROWS)
    starts = range(0, len(data), rows)
    minibatches = [Minibatch.of(np.arange(at, min(at + rows, len(data))), EVALUATION) for at in starts]
    loader.plan(None, minibatches)
    for minibatch in minibatches:
        if job.training_step is not None and job.as_buffers:
            learner.weights.copy_(weights)  # training_step may have changed them in the previous batch
        found, outputs, targets = _batch(job, learner, data, loader, minibatch)
        losses.add(found)
        outputs, targets = move((outputs, targets), torch.device("cpu"))
        for metric in streaming.values():
            metric.update(outputs, targets)
        if len(streaming) < len(job.metrics):
            seen.append((outputs, targets))
    return losses, seen


def _loaded(job: Job, learner: Learner) -> tuple[Batches, Loader]:
    """Return the evaluation set and its loader, which the learner keeps."""
    if learner.evaluation is None or learner.evaluation[0].data is not job.eval_data:
        data = job.eval_batches()
        learner.evaluation = data, learner.loader_of(SeededFetch(data, learner.seed))
    return learner.evaluation


def _batch(
    job: Job, learner: Learner, data: Batches, loader: Loader, minibatch: Minibatch
) -> tuple[Losses, Any, Any]:
    """Return the losses, the outputs and the targets of these samples.

    Raise JobError if the job's own code failed.
    """
    batch, outputs, targets, hint, indices = None, None, None, None, minibatch.indices
    try:
        batch = move(loader(minibatch), learner.device)
        if job.metrics or job.loss is not None:
            outputs, targets = job.outputs(learner.forward, batch)
        if not job.evaluates_loss:
            return Losses(), outputs, targets
        if job.loss is not None:
            loss = batch_loss(job.loss(outputs, targets))
        else:
            hint = IN_EVALUATION
            loss = job.weighted_loss(learner.forward, batch)
        return Losses.of(loss, len(indices)), outputs, targets
    except OddlotError as error:
        if hint is None:
            raise
        raise error.with_message(f"{error}. {hint[1]}", hint=hint[0]) from error
    except Exception as error:
        raise minibatch_failed("the evaluator", error, data, indices, batch, learner.model, hint) from error


def _compute(metrics: Mapping[str, Any], streaming: Mapping[str, Any], seen: list[Any]) -> dict[str, float]:
    values = {name: _number(name, metric.compute()) for name, metric in streaming.items()}
    if len(streaming) < len(metrics):
        outputs, targets = (
            _whole(what, parts) for what, parts in zip(NAMES, zip(*seen, strict=True), strict=True)
        )
        values |= {
            name: _number(name, metric(outputs, targets))
            for name, metric in metrics.items()
            if name not in values
        }
    return {name: values[name] for name in metrics}


def _whole(what: str, parts: Sequence[Any]) -> Tensor:
    """Concatenate the tensors of all batches. Raise JobError if they are not tensors, or have different shapes."""
    try:
        return torch.cat(parts)  # type: ignore[arg-type]  # whatever they are
    except (TypeError, RuntimeError):
        kinds = list(dict.fromkeys(_kind(part) for part in parts))
        raise JobError(
            f"metrics need the {what} of all batches as one tensor, but they are {', '.join(kinds)}. Use "
            "Job(predict=...) to return one tensor each of outputs and targets, or metrics with update() and compute()",
            "no_tensor_for_metrics",
            what=what,
            found=kinds,
        ) from None


def _kind(part: Any) -> str:
    """Return the shape of a tensor, or the type of another object."""
    return f"tensors {list(part.shape)}" if isinstance(part, Tensor) else type(part).__name__


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        kind = type(value).__name__
        message = f"metric {name!r} must return one number, not {kind}"
        raise JobError(message, "metric_without_number", metric=name, type=kind) from None
