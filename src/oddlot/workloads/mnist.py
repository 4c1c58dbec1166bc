"""MNIST and Fashion-MNIST: 70,000 images of 28 x 28 pixels, in the user's IDX files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oddlot.core.support.errors import UsageError
from oddlot.workloads.formats.idx import find_idx, read_idx

if TYPE_CHECKING:
    from oddlot.train.job import Job

SIDE = 28
MNIST, MNIST_SOURCE = (
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist (a mirror of LeCun, Cortes and Burges' database)",
)
"""Name of the dataset, and where to download it."""
Images = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def mnist(data_dir: str = "", hidden: int = 64, batch_size: int = 64) -> "Job":
    """MNIST: 60,000 training and 10,000 test images of handwritten digits of 28 x 28 pixels, and a small network.

    Args:
        data_dir: Folder of the files. Empty: $ODDLOT_DATA.
        hidden: Width of the hidden linear layer.
        batch_size: Samples per minibatch.
    """
    return _job(MNIST, MNIST_SOURCE, data_dir, hidden, batch_size, "epochs>=5")


def fashion_mnist(data_dir: str = "", hidden: int = 64, batch_size: int = 64) -> "Job":
    """Fashion-MNIST: 60,000 training and 10,000 test images of clothes of 28 x 28 pixels, and a small network.

    Args:
        data_dir: Folder of the files. Empty: $ODDLOT_DATA.
        hidden: Width of the hidden linear layer.
        batch_size: Samples per minibatch.
    """
    source = "https://github.com/zalandoresearch/fashion-mnist (folder data/fashion)"
    return _job("fashion_mnist", source, data_dir, hidden, batch_size, "epochs>=10")


def _job(name: str, source: str, data_dir: str, hidden: int, batch_size: int, until: str) -> "Job":
    from oddlot.workloads.small_cnn import pictures_job

    train, test = read_images(name, source, data_dir)
    return pictures_job(name, train, test, hidden, batch_size, until)


def read_images(name: str, source: str, data_dir: str) -> tuple[Images, Images]:
    """Return the training and the test images of a dataset: bytes [n, 28, 28], and classes as bytes [n] from 0 to 9.

    `source` is where to download the files. Raise UsageError if files are missing or invalid.
    """
    names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    files = find_idx(name, names, source, data_dir)
    arrays = [read_idx(file) for file in files]
    for start in (0, 2):
        _check(arrays[start], arrays[start + 1], files[start], files[start + 1])
    return (arrays[0], arrays[1]), (arrays[2], arrays[3])


def _check(images: NDArray[Any], labels: NDArray[Any], path: Path, beside: Path) -> None:
    files = f"{path} and {beside.name}"
    shapes = images.shape[1:] == (SIDE, SIDE) and labels.shape == images.shape[:1]
    if not shapes or not images.dtype == labels.dtype == "u1":
        raise UsageError(
            f"{files} have arrays {images.shape} {images.dtype} and {labels.shape} {labels.dtype}, not bytes "
            f"[n, {SIDE}, {SIDE}] and [n]: download the files again",
            "wrong_shape",
            path=str(path),
            shapes=(images.shape, labels.shape),
            dtypes=(str(images.dtype), str(labels.dtype)),
        )
    if not len(images):
        message = f"{files} have no images: download the files again"
        raise UsageError(message, "no_pictures", path=str(path))
    if labels.max(initial=0) > 9:
        most = int(labels.max())
        message = f"{files}: class {most} is not from 0 to 9: download the files again"
        raise UsageError(message, "invalid_labels", path=str(path), given=most)
