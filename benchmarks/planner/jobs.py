"""Jobs for the planner's benchmarks: small networks on generated data that need 1,000 synchronous updates or more."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from oddlot import SGD, Job, accuracy

TEACHER_GOAL = "loss<=1.05"
SOFTMAX_GOAL = "loss<=1.49"
SAMPLES, EVAL_SAMPLES = 50_000, 6_000
BATCH = 32
FEATURES, HIDDEN, CLASSES = 64, 64, 30
"""Sizes of the network of `teacher_job`."""


def teacher_job() -> Job:
    """Return a job of a network with a hidden layer, with the labels of a random network."""
    generator = torch.Generator().manual_seed(0)
    scale = _scale(FEATURES, power=0.25)
    inputs = torch.randn(SAMPLES + EVAL_SAMPLES, FEATURES, generator=generator) * scale
    first = torch.randn(FEATURES, HIDDEN, generator=generator) / scale[:, None] * FEATURES**-0.5
    second = torch.randn(HIDDEN, CLASSES, generator=generator)
    labels = (torch.tanh(inputs @ first) @ second).argmax(1)
    return _job(
        lambda: nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)),
        inputs,
        labels,
    )


def softmax_job(features: int = 100, classes: int = 10, flipped: float = 0.2) -> Job:
    """Return a job of a linear classifier. A random class replaces the label of a share `flipped` of the samples."""
    generator = torch.Generator().manual_seed(1)
    scale = _scale(features, power=0.5)
    inputs = torch.randn(SAMPLES + EVAL_SAMPLES, features, generator=generator) * scale
    weights = torch.randn(features, classes, generator=generator) / scale[:, None] * 3.0 * features**-0.5
    labels = (inputs @ weights + torch.randn(len(inputs), classes, generator=generator)).argmax(1)
    replaced = torch.rand(len(labels), generator=generator) < flipped
    labels = torch.where(replaced, torch.randint(classes, labels.shape, generator=generator), labels)
    return _job(lambda: nn.Linear(features, classes), inputs, labels)


def _scale(features: int, power: float) -> Tensor:
    """Return standard deviations of the features that fall by a power law."""
    return torch.arange(1, features + 1).float().pow(-power)


def _job(model: Callable[[], nn.Module], inputs: Tensor, labels: Tensor) -> Job:
    return Job(
        model,
        (inputs[:SAMPLES], labels[:SAMPLES]),
        loss=cross_entropy,
        eval_data=(inputs[SAMPLES:], labels[SAMPLES:]),
        metrics={"accuracy": accuracy},
        batch_size=BATCH,
        optimizer=SGD(lr=0.05),
    )


JOBS: dict[str, tuple[Callable[[], Job], str]] = {
    "teacher": (teacher_job, TEACHER_GOAL),
    "softmax": (softmax_job, SOFTMAX_GOAL),
}
"""Functions that return the jobs, and the goals."""
