"""CIFAR-10: 60,000 color images of 32 x 32 pixels, in the user's files."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oddlot.core.optimizers import SGD
from oddlot.core.support.errors import UnknownName, UsageError
from oddlot.machines.text_files import unreadable
from oddlot.workloads.data_folders import found_instead, looked_in, roots
from oddlot.workloads.formats import cifar_pickle as batches, image_folder as photos
from oddlot.workloads.formats.decoded_cache import SPLITS, Splits, cached
from oddlot.workloads.formats.image_folder import CLASSES
from oddlot.workloads.formats.tar_members import OPENERS, is_archive

if TYPE_CHECKING:
    from oddlot.train.job import Job

NAME = "cifar10"
FOLDERS = (NAME, "cifar10_jpeg")
SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html (the python version)"
SAMPLE = 5000
"""Number of images to compute mean and standard deviation of the colors."""
OPTIMIZERS = {
    "small": SGD(lr=0.03, momentum=0.9),
    "resnet20": SGD(lr=0.1, momentum=0.9, weight_decay=1e-4),
}
UNTIL = {"small": "epochs>=10", "resnet20": "epochs>=30"}


@dataclass(frozen=True)
class FoundDataset:
    """The dataset in one of its formats."""

    place: Path
    """Folder of the dataset."""
    files: Sequence[Path]
    """Files of the dataset."""
    read: Callable[[], Splits]
    """Function that reads the files."""


def cifar10(data_dir: str = "", model: str = "small", augment: bool = True, batch_size: int = 64) -> "Job":
    """CIFAR-10: 50,000 training and 10,000 test images of 32 x 32 pixels in color, ten classes.

    With two workers, the strategy `synchronous` and JPEG files, `small` reaches an accuracy of 0.69-0.72 in 10 epochs,
    and `resnet20` reaches 0.59 in 2.

    Args:
        data_dir: Folder of the files. Empty: $ODDLOT_DATA.
        model: `small` or `resnet20`.
        augment: Whether training images are randomly shifted and mirrored.
        batch_size: Samples per minibatch.
    """
    from torch.nn.functional import cross_entropy

    from oddlot.train.job import Job, accuracy
    from oddlot.workloads.cifar_models import NETWORKS

    if model not in NETWORKS:
        raise UnknownName("model", model, NETWORKS, key="model")
    found = find(data_dir)
    splits = cached(NAME, found.files, lambda: _checked(found))
    mean, deviation = _scale(splits)
    return Job(
        model=partial(NETWORKS[model], mean, deviation, augment),
        train_data=splits["train"],
        eval_data=splits["test"],
        loss=cross_entropy,
        metrics={"accuracy": accuracy},
        optimizer=OPTIMIZERS[model],
        batch_size=batch_size,
        until=UNTIL[model],
        name=NAME,
    )


def find(data_dir: str | Path = "") -> FoundDataset:
    """Find the dataset in `data_dir` or, by default, in $ODDLOT_DATA; first in a folder `cifar10` there.

    Raise UsageError, with the searched folders, the formats and the source, if it is not found.
    """
    folders = [folder for root in roots(data_dir) for folder in (*(root / f for f in FOLDERS), root)]
    try:
        for folder in folders:
            for found in _forms(folder):
                return found
    except OSError as error:
        raise unreadable(error.filename, error) from None
    looked = list(map(str, folders))
    instead, fields = found_instead(folders, [batches.ARCHIVE])
    raise UsageError(
        f"the files of {NAME} are missing: {batches.ARCHIVE}, or its unpacked folder {batches.FOLDER}, or images such "
        f"as {SPLITS[0]}/cat/0001.png in folders or in archives called {NAME}*{', *'.join(OPENERS)}. "
        f"{looked_in(looked)}. {instead}Download them from {SOURCE} into one folder, and pass it as data_dir (--data) "
        "or in $ODDLOT_DATA",
        "missing_data",
        "data_dir",
        dataset=NAME,
        looked_in=looked,
        **fields,
    )


def _forms(folder: Path) -> Iterator[FoundDataset]:
    """Yield the formats of the dataset in this folder, lossless formats first."""
    for unpacked in (folder / batches.FOLDER, folder):
        files = [unpacked / name for names in batches.PARTS.values() for name in names]
        if (unpacked.name == batches.FOLDER and unpacked.is_dir()) or files[0].is_file():
            yield FoundDataset(folder, files, partial(batches.read_folder, unpacked))
    archive = folder / batches.ARCHIVE
    if archive.is_file():
        yield FoundDataset(folder, [archive], partial(batches.read_archive, archive))
    if photos.is_tree(folder):
        files = photos.tree_files(folder)
        yield FoundDataset(folder, files, partial(photos.read_tree, folder, files))
    archives = sorted(path for path in folder.glob(f"{NAME}*") if is_archive(path) and path.is_file())
    if archives:
        yield FoundDataset(folder, archives, partial(photos.read_archives, archives))


def _checked(found: FoundDataset) -> Splits:
    """Read the dataset. Raise UsageError unless both splits have images of all classes."""
    splits = found.read()
    for split in SPLITS:
        images, labels = splits[split]
        if not len(images):
            message = f"{found.place}: there are no {split} images: download all of {NAME}"
            raise UsageError(message, "no_pictures", path=str(found.place), split=split)
        counts = np.bincount(labels, minlength=len(CLASSES))
        if missing := [name for name, count in zip(CLASSES, counts, strict=True) if not count]:
            message = (
                f"{found.place}: there are no {split} images of {', '.join(missing)}: download all of {NAME}"
            )
            raise UsageError(message, "missing_classes", path=str(found.place), split=split, classes=missing)
    return splits


def _scale(splits: Splits) -> tuple[list[float], list[float]]:
    """Return the mean and standard deviation of each color channel, over images of all classes."""
    images, _ = splits["train"]
    some = images[:: max(1, len(images) // SAMPLE)]
    return some.mean((0, 2, 3)).tolist(), some.std((0, 2, 3)).tolist()
