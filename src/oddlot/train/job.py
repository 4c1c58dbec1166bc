"""What is to be trained: a model, data, a loss, and how to take a step."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from oddlot.core.errors import InvalidValue, JobError, UsageError, short
from oddlot.core.optimizers import SGD, Optimizer
from oddlot.core.validation import AboveZero, AtLeastOne, check_settings
from oddlot.train.from_torch import check_not_from_torch
from oddlot.train.lr_schedules import Schedule
from oddlot.train.seeding import warn_of_rng

ROWS = 256
"""samples that are evaluated at once, unless the job says otherwise"""
FUNCTIONS = ("loss", "training_step", "predict", "local_optimizer", "lr_schedule", "collate", "worker_init")
"""fields of a Job that are functions, or None"""
Metric = Callable[..., Any]
"""`metric(outputs, targets) -> number`, or an object with `reset`, `update(outputs, targets)` and `compute`."""


@dataclass
class Job:
    """Everything about a training that does not depend on where or by which strategy it runs.

    `model` makes the module; it is called once at the hub, for the initial weights, and once on every worker.
    `train_data` and `eval_data` are map-style datasets, or tuples of arrays or tensors of equal length. A batch is what
    `collate` makes of a list of samples (for arrays: a tuple of tensors), moved to `device`.

    The loss of a batch is `training_step(model, batch)` if given, else `loss(model(inputs), targets)`; it must be a
    scalar, the mean over the batch. If both are given, `loss` is that of the evaluation set. `optimizer` turns merged
    directions into steps at the hub; a worker's local steps (LocalSGD) use `local_optimizer(parameters)`, or the same
    rule as the hub's.

    `lr_schedule` is a factor on every learning rate, as a function of the epochs that have reached the model: a number
    such as 2.5, the same under every strategy; `Cosine`, `Linear`, `MultiStep` are ready-made. It counts once, where a
    gradient becomes a step: at the hub, or in a worker's local steps, but not in a server rule that merges these.
    `max_grad_norm` is the Euclidean norm to which the mean gradient of each minibatch is clipped before it is used.

    Float buffers are averaged, `num_batches_tracked` adds up, other integers and flags take one worker's value; frozen
    parameters whose names fit a pattern of `as_buffers` are merged likewise. A parameter without a gradient is left
    alone, as by torch.optim. Each worker process calls `worker_init()` first. A random generator that the dataset keeps
    in an attribute `rng` (numpy, random or torch) is seeded for each task, as the global ones are.

    `metrics` are functions of (outputs, targets) of the whole evaluation set or torchmetrics objects, by name;
    `predict(model, batch)` gives both of a batch (None: `model(inputs), targets`). `batch_size` is samples per
    minibatch of one worker, `eval_batch_size` those that are evaluated at once (None: 256, or `batch_size` if that is
    more). `device` is `auto` (cuda, else mps, else cpu) or a torch device. `until` is when a run ends unless `fit` is
    told otherwise.
    """

    model: Callable[[], nn.Module]
    train_data: Any
    loss: Callable[[Any, Any], Tensor] | None = None
    training_step: Callable[[nn.Module, Any], Tensor] | None = None
    eval_data: Any = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    predict: Callable[[nn.Module, Any], tuple[Any, Any]] | None = None
    """(outputs, targets) of a batch for the metrics; None: `model(inputs), targets`"""
    optimizer: Optimizer = field(default_factory=lambda: SGD(lr=0.05, momentum=0.9))
    local_optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer] | None = None
    lr_schedule: Schedule | None = None
    max_grad_norm: AboveZero | None = None
    """of the mean gradient of each minibatch; None: not clipped"""
    keep_optimizer: bool = False
    """a worker's local steps go on with the optimizer, and the moments, of its last task; otherwise each task begins
    with a fresh one"""
    batch_size: AtLeastOne = 32
    """samples per minibatch of one worker: a synchronous step of 4 workers uses 4 times as many"""
    eval_batch_size: AtLeastOne | None = None
    """samples that are evaluated at once; None: 256, or `batch_size` if that is more"""
    collate: Callable[[list[Any]], Any] | None = None
    as_buffers: Sequence[str] = ()
    """frozen parameters that `training_step` itself changes, by name or pattern (`teacher.*`): merged as buffers are"""
    worker_init: Callable[[], None] | None = None
    """called first in each worker process"""
    sparse: bool = False
    """a batch touches few rows of the weights: what is not zero travels, where that is fewer bytes"""
    device: str = "auto"
    """`auto` (cuda, else mps, else cpu) or a torch device"""
    until: str = ""
    """when a run of this job ends unless told otherwise, such as "accuracy>=0.98 or epochs>=20" """
    name: str = "job"

    def __post_init__(self) -> None:
        if isinstance(self.model, nn.Module) or not callable(self.model):
            told = "Job(model=...) needs a function that makes the module, such as `lambda: nn.Linear(4, 2)`"
            raise UsageError(told, "not_a_function", "model")
        if self.loss is None and self.training_step is None:
            told = "Job needs loss=f(outputs, targets) or training_step=f(model, batch)"
            raise UsageError(told, "missing_loss", "loss")
        check_not_from_torch(self)
        check_settings(self)
        for name in FUNCTIONS:
            _check_function(name, getattr(self, name))
        if isinstance(self.lr_schedule, type):
            raise _class_given("lr_schedule", self.lr_schedule, "(...)")
        if isinstance(self.as_buffers, str) or not all(isinstance(one, str) for one in self.as_buffers):
            raise InvalidValue("as_buffers", self.as_buffers, 'a list of names, such as ["teacher.*"]')
        _check_metrics(self.metrics)
        warn_of_rng(self.train_data)

    def batch_loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The mean loss of a batch, as a scalar tensor with its graph."""
        if self.training_step is not None:
            loss: Any = self.training_step(model, batch)
        else:
            assert self.loss is not None
            loss = self.loss(*self.outputs(model, batch))
        return scalar(loss)

    def outputs(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        """What the model says about a batch, and what it should have said."""
        if self.predict is not None:
            pair: object = self.predict(model, batch)
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                told = f"predict(model, batch) must return (outputs, targets), not {type(pair).__name__}"
                raise JobError(told, "predict_without_pair", type=type(pair).__name__)
            return pair[0], pair[1]
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise JobError(
                f"a batch must be (inputs, targets), not {type(batch).__name__}: give the Job a training_step, and "
                "predict(model, batch) -> (outputs, targets) for metrics",
                "batch_without_targets",
                type=type(batch).__name__,
            )
        return model(batch[0]), batch[1]


def made(job: Job) -> nn.Module:
    """The job's model, new. JobError: it is none."""
    model: object = job.model()
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise JobError(f"Job(model=...) must return a torch.nn.Module, not {kind}", "not_a_module", type=kind)
    return model


def scalar(loss: Any) -> Tensor:
    """The loss of a batch. JobError: it is no scalar tensor."""
    if not isinstance(loss, Tensor):
        raise JobError(
            f"the loss of a batch must be a scalar tensor, not {short(loss)}: return what PyTorch computed, without "
            ".item(), .numpy() or float()",
            "loss_without_tensor",
            given=loss,
        )
    if loss.numel() != 1:
        told = f"the loss of a batch must be a scalar tensor, not {tuple(loss.shape)}: take its mean"
        raise JobError(told, "loss_not_scalar", shape=tuple(loss.shape))
    return loss


def _check_function(name: str, function: Any) -> None:
    if isinstance(function, type) and issubclass(function, nn.Module):
        raise _class_given(name, function)
    if function is not None and not callable(function):
        raise InvalidValue(name, function, "a function")


def _class_given(name: str, kind: type, arguments: str = "()") -> UsageError:
    given = kind.__name__
    told = f"{name} = {given} is a class: pass one of it, {given}{arguments}"
    return UsageError(told, "class_given", name, name=name, given=given)


def _check_metrics(metrics: object) -> None:
    if not isinstance(metrics, Mapping):
        told = 'metrics must be a dict such as {"accuracy": oddlot.accuracy}'
        raise UsageError(told, "invalid_value", "metrics", name="metrics", given=metrics, must="a dict")
    for name, metric in metrics.items():
        if not isinstance(name, str) or re.search(r"[\s<>=,&]", name) or not name:
            told = f"metrics: {name!r} must be a word, so that a goal can name it"
            raise UsageError(told, "invalid_metric_name", "metrics", given=name)
        if isinstance(metric, type):
            raise _class_given(f"metrics.{name}", metric)
        if not callable(metric) and not hasattr(metric, "update"):
            raise InvalidValue(f"metrics.{name}", metric, "a function, or have update() and compute()")


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of rows whose largest output is the target class: outputs [n, classes], targets [n].

    JobError: other shapes, which PyTorch would broadcast to a number that is no share.
    """
    shapes = tuple(outputs.shape), tuple(targets.shape)
    if len(shapes[0]) != 2 or shapes[0][1] < 2 or shapes[1] != shapes[0][:1]:
        raise JobError(
            f"accuracy has outputs {list(shapes[0])} and targets {list(shapes[1])}. It needs outputs [n, classes], two "
            "classes or more, and targets [n]. Squeeze targets of shape [n, 1]; for one output per sample, or for a "
            "class per pixel, write a metric of your own",
            "wrong_shape",
            outputs=shapes[0],
            targets=shapes[1],
        )
    return (outputs.argmax(dim=1) == targets).sum().item() / len(targets)


def choose_device(wish: str, worker: int = 0) -> torch.device:
    """The device that `wish` means for this worker; with several GPUs worker i takes number i modulo their number.

    A GPU that is named with its number is everybody's.
    """
    if wish != "auto":
        device = _named_device(wish)
    elif torch.cuda.is_available():
        device = torch.device("cuda")
    else:
        device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    if device.type == "cuda" and ":" not in wish:
        return torch.device("cuda", worker % torch.cuda.device_count())
    return device


def _named_device(wish: str) -> torch.device:
    try:
        device = torch.device(wish)
    except RuntimeError:
        raise UsageError(
            f"device = {wish!r} is none: there are auto, cpu, cuda, cuda:1, ..., mps",
            "unknown_device",
            "device",
            given=wish,
        ) from None
    backends = {"cuda": torch.cuda, "mps": torch.backends.mps}
    if device.type in backends and not backends[device.type].is_available():
        raise UsageError(
            f"device = {wish!r} is not there: PyTorch finds no {device.type} on this machine",
            "missing_device",
            "device",
            given=wish,
            type=device.type,
        )
    return device
