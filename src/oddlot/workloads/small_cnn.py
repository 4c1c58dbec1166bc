"""A small convolutional network for the classification of small images."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from oddlot.core.optimizers import SGD
from oddlot.core.support.errors import InvalidValue
from oddlot.train.job import Job, accuracy

Bytes = NDArray[np.uint8]


class Pixels(nn.Module):
    """Gray images, from bytes [n, height, width] to float32 [n, 1, height, width] of mean 0 and standard deviation 1.

    Images stay bytes until here, to save memory and transfers to a GPU. The output is channels-last, because PyTorch is
    then twice as fast on CPUs.
    """

    def __init__(self, mean: float, deviation: float) -> None:
        super().__init__()
        self.mean, self.deviation = mean, deviation

    def forward(self, pixels: Tensor) -> Tensor:
        return ((pixels.float().unsqueeze(3) - self.mean) / self.deviation).permute(0, 3, 1, 2)


def pooled(channels: int, wider: int) -> list[nn.Module]:
    """Return a convolution, max pooling by 2, and ReLU.

    ReLU comes last because it then has a quarter of the work.
    """
    return [nn.Conv2d(channels, wider, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]


def convolutional(side: int, hidden: int, mean: float, deviation: float) -> nn.Module:
    """Return a network of two convolutions with pooling and two linear layers, for images [side, side], ten classes."""
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
    """Return the job of classifying images. `train` and `test` are bytes [n, side, side] and classes [n] below 10."""
    if hidden < 1:
        message = f"hidden = {hidden}: the network needs at least 1 hidden unit"
        raise InvalidValue("hidden", hidden, "at least 1").with_message(message)
    some = train[0][:2000]  # enough for mean and standard deviation
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
    """Return the data with classes as int64, as PyTorch's losses need."""
    return part[0], part[1].astype(np.int64)
