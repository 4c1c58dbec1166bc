"""Two networks for coloured pictures of 32 x 32 pixels and ten classes: a small one for CPUs, and ResNet-20."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from oddlot.workloads.small_cnn import pooled

PADDING = 4
"""pixels by which a picture is moved at most"""


class Colours(nn.Module):
    """Coloured pictures as bytes [n, 3, height, width] to float32 of mean 0 and deviation 1 in each channel.

    The pictures stay bytes until here, as in `images.Pixels`. `mean` and `deviation` are of bytes, a number a channel.
    """

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        # Neither trained nor saved: every process makes them of the same numbers.
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation).view(-1, 1, 1), persistent=False)
        self.mean: Tensor
        self.deviation: Tensor

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels.float() - self.mean) / self.deviation


class Augmented(nn.Module):
    """While training, each picture [n, 3, height, width] is moved by up to 4 pixels and mirrored or not, by chance.

    What comes in at the edge is 0: the mean colour, after `Colours`. In evaluation mode nothing is changed. It draws
    from torch's own chance, which is seeded before each task.
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
    """The same pictures with a pixel's channels side by side in memory: PyTorch convolves and pools these faster."""

    def forward(self, pictures: Tensor) -> Tensor:
        return pictures.contiguous(memory_format=torch.channels_last)


class Block(nn.Module):
    """Two convolutions whose sum with their input goes on. A stride halves the sides and may widen the channels.

    The input then skips every other pixel and has zeros for the new channels: no parameters (option A of the paper).
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
    """ResNet-20: bytes [n, 3, 32, 32] to scores [n, 10]; 269,722 parameters.

    One convolution, three stages of three blocks with 16, 32 and 64 channels, the mean over all pixels, one linear
    layer. Source: He et al. 2016, section 4.2, n = 3.
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
    """Three convolutions, each with a pooling, and two linear layers: bytes [n, 3, 32, 32] to scores [n, 10].

    89,834 parameters; a fourteenth of the multiplications of ResNet-20.
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
"""By the name that the task's option has for them."""


def _convolution(channels: int, wider: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, wider, 3, stride, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(wider)]


def _initialise(module: nn.Module) -> None:
    """Normal weights of variance 2 / inputs. Source: He et al. 2015, "Delving Deep into Rectifiers"."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
