"""Samples per second with the best batch size, over one image at a time, of convolutional networks."""

import torch
from torch.nn.functional import cross_entropy

from benchmarks.report import show
from oddlot import SGD, Job
from oddlot.planner.profile import Profile, profile
from oddlot.workloads.cifar_models import resnet20
from oddlot.workloads.digits import digits

IMAGES = 64
"""Images of noise. Their number limits the batch size."""


def images_job() -> Job:
    """Return a job of ResNet-20 for 3 x 32 x 32 pixels, with random images and labels."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (IMAGES, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.randint(10, (IMAGES,), generator=generator)
    return Job(
        lambda: resnet20((128.0,) * 3, (74.0,) * 3, augment=False),
        (images, labels),
        loss=cross_entropy,
        optimizer=SGD(lr=0.1),
    )


def batching_speedup(*, is_full: bool) -> float:
    """Print the speed-up of ResNet-20 and, in the full form, of a small network. Return that of ResNet-20."""
    large = profile(images_job())
    found = {"ResNet-20 (3 x 32 x 32 pixels)": large}
    found |= {"digits (8 x 8 pixels)": profile(digits())} if is_full else {}
    show(
        "seconds per image by batching, gradients on this CPU (paper: 5.5x for CaffeNet)",
        ["network", "parameters", "one at a time", "best", "batch at the knee", "speed-up"],
        [_row(name, each) for name, each in found.items()],
    )
    return large.batching_speedup


def _row(name: str, found: Profile) -> list[str]:
    times = [each.seconds_per_sample for each in found.batches]
    return [
        name,
        f"{found.parameters:,}",
        f"{1e3 * times[0]:.3g} ms",
        f"{1e3 * min(times):.3g} ms",
        f"{found.knee}",
        f"{found.batching_speedup:.1f}x",
    ]
