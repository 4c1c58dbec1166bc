"""Small pictures and a small convolutional network that tells their classes."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from oddlot.core.errors import InvalidValue
from oddlot.core.optimizers import SGD
from oddlot.train.job import Job, accuracy

Bytes = NDArray[np.uint8]


class Pixels(nn.Module):
    """Grey pictures as bytes [n, height, width] to float32 [n, 1, height, width] of mean 0 and deviation 1.

    The pictures stay bytes until here, so that a worker's memory and a batch's way to a GPU hold a quarter. Their
    strides say that a pixel's channels lie together, which PyTorch convolves and pools twice as fast on CPUs.
    """

    def __init__(self, mean: float, deviation: float) -> None:
        super().__init__()
        self.mean, self.deviation = mean, deviation

    def forward(self, pixels: Tensor) -> Tensor:
        return ((pixels.float().unsqueeze(3) - self.mean) / self.deviation).permute(0, 3, 1, 2)


def pooled(channels: int, wider: int) -> list[nn.Module]:
    """A convolution and what is left of it where the sides are halved; ReLU comes last, on a quarter of the numbers."""
    return [nn.Conv2d(channels, wider, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]


def convolutional(side: int, hidden: int, mean: float, deviation: float) -> nn.Module:
    """Two convolutions, each with a pooling, and two linear layers, for pictures of side x side and ten classes."""
    return nn.Sequential(
        Pixels(mean, deviation),
        *pooled(1, 16),
        *pooled(16, 32),
        nn.Flatten(),
        nn.Linear(32 * (side // 4) ** 2, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


def pictures_job(
    name: str, train: tuple[Bytes, Bytes], test: tuple[Bytes, Bytes], hidden: int, batch_size: int, until: str
) -> Job:
    """The job of classifying pictures: `train` and `test` are bytes [n, side, side] and classes [n] below 10."""
    if hidden < 1:
        told = f"hidden = {hidden}: the network needs at least 1 hidden unit"
        raise InvalidValue("hidden", hidden, "at least 1").retold(told)
    some = train[0][:2000]  # enough to tell the scale by
    return Job(
        model=partial(convolutional, some.shape[1], hidden, float(some.mean()), float(some.std())),
        train_data=_with_long_labels(train),
        eval_data=_with_long_labels(test),
        loss=cross_entropy,
        metrics={"accuracy": accuracy},
        optimizer=SGD(lr=0.03, momentum=0.9),
        batch_size=batch_size,
        until=until,
        name=name,
    )


def _with_long_labels(part: tuple[Bytes, Bytes]) -> tuple[Bytes, NDArray[Any]]:
    """PyTorch's losses ask for classes as int64."""
    return part[0], part[1].astype(np.int64)
