"""Handwritten digits of 8 x 8 pixels, packaged with oddlot. Origin and license: data/digits.LICENSE.txt."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from oddlot.train.job import Job

Images = tuple[NDArray[np.uint8], NDArray[np.uint8]]
FILE = Path(__file__).parent / "data" / "digits.npz"


def digits(hidden: int = 64, batch_size: int = 32) -> "Job":
    """Handwritten digits: 1,437 training and 360 test images of 8 x 8 pixels, and a small convolutional network.

    The images are packaged with oddlot, and the split is fixed.

    Args:
        hidden: Width of the hidden linear layer.
        batch_size: Samples per minibatch.
    """
    from oddlot.workloads.small_cnn import pictures_job

    train, test = packaged_digits()
    return pictures_job("digits", train, test, hidden, batch_size, "epochs>=30")


def packaged_digits() -> tuple[Images, Images]:
    """Return the training and the test images: bytes [n, 8, 8] from 0 to 16, and classes [n] from 0 to 9."""
    with np.load(FILE) as file:
        images, labels = file["images"], file["labels"]
    train, test = split(labels)
    return (images[train], labels[train]), (images[test], labels[test])


def split(labels: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of training and test images: a fixed fifth of each class is for testing."""
    shuffled = np.random.Generator(np.random.PCG64(0)).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    testing = np.arange(len(labels)) % 5 == 0
    return by_class[~testing], by_class[testing]
