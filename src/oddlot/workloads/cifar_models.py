"""Two networks for color images of 32 x 32 pixels and ten classes: a small network for CPUs, and ResNet-20."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from oddlot.workloads.small_cnn import pooled

PADDING = 4
"""Largest shift of an image, in pixels."""


class Colours(nn.Module):
    """Color images, from bytes [n, 3, height, width] to float32 of mean 0 and standard deviation 1 in each channel.

    Images stay bytes until here, as in `small_cnn.Pixels`. `mean` and `deviation` have a number for each channel.
    """

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        # Neither trained nor saved: every process computes the same values.
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation).view(-1, 1, 1), persistent=False)
        self.mean: Tensor
        self.deviation: Tensor

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels.float() - self.mean) / self.deviation


class Augmented(nn.Module):
    """Shift each training image [n, 3, height, width] randomly by up to 4 pixels, and mirror it with probability 0.5.

    The padding is 0, the mean color after `Colours`. In evaluation mode, images are unchanged. It uses torch's global
    generator. The generator is seeded before each task.
    Source: He et al. 2016, "Deep Residual Learning for Image Recognition", section 4.2.
    """

    def forward(self, pictures: Tensor) -> Tensor:
        if not self.training:
            return pictures
        n, _, height, width = pictures.shape
        windows = functional.pad(pictures, [PADDING] * 4).unfold(2, height, 1).unfold(3, width, 1)
        down, right = torch.randint(2 * PADDING + 1, (2, n), device=pictures.device)
        moved = windows[torch.arange(n, device=pictures.device), :, down, right]
        mirrored = torch.rand(n, 1, 1, 1, device=pictures.device) < 0.5
        return torch.where(mirrored, moved.flip(3), moved)


class ByPixel(nn.Module):
    """Convert images to channels-last memory format. PyTorch convolves and pools faster with it."""

    def forward(self, pictures: Tensor) -> Tensor:
        return pictures.contiguous(memory_format=torch.channels_last)


class Block(nn.Module):
    """A residual block of two convolutions. A stride halves the sides and may widen the channels.

    The shortcut then skips every other pixel and pads channels with zeros, without parameters (option A of the paper).
    """

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.stride, self.more = stride, wider - channels
        self.first = nn.Sequential(*_convolution(channels, wider, stride), nn.ReLU())
        self.second = nn.Sequential(*_convolution(wider, wider))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        return functional.relu(self.second(self.first(x)) + shortcut)


def resnet20(mean: Sequence[float], deviation: Sequence[float], augment: bool) -> nn.Module:
    """Return ResNet-20, from bytes [n, 3, 32, 32] to scores [n, 10], with 269,722 parameters.

    It has one convolution, three stages of three blocks with 16, 32 and 64 channels, global average pooling, and one
    linear layer. Source: He et al. 2016, section 4.2, n = 3.
    """
    widths = [16, *(width for width in (16, 32, 64) for _ in range(3))]
    blocks = [
        Block(channels, wider, stride=1 if channels == wider else 2) for channels, wider in pairwise(widths)
    ]
    model = nn.Sequential(
        Colours(mean, deviation),
        *([Augmented()] if augment else []),
        ByPixel(),
        *_convolution(3, 16),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    return model.apply(_initialise)


def small(mean: Sequence[float], deviation: Sequence[float], augment: bool) -> nn.Module:
    """Return a network of three convolutions with pooling and two linear layers, from bytes [n, 3, 32, 32] to scores
    [n, 10].

    It has 89,834 parameters, and 1/14 of the multiplications of ResNet-20.
    """
    return nn.Sequential(
        Colours(mean, deviation),
        *([Augmented()] if augment else []),
        ByPixel(),
        *pooled(3, 16),
        *pooled(16, 32),
        *pooled(32, 64),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


NETWORKS: dict[str, Callable[[Sequence[float], Sequence[float], bool], nn.Module]] = {
    "small": small,
    "resnet20": resnet20,
}
"""Networks by the values of the workload's option `model`."""


def _convolution(channels: int, wider: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, wider, 3, stride, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(wider)]


def _initialise(module: nn.Module) -> None:
    """Initialize weights with He et al. 2015, "Delving Deep into Rectifiers": normal, of variance 2 / inputs."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
