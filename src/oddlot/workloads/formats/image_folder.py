"""CIFAR-10 as single images, such as `train/cat/0001.jpg`, in tar archives or in folders."""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oddlot.core.support.errors import UnknownName, UsageError, short
from oddlot.core.support.text import or_nearest
from oddlot.workloads.formats.decoded_cache import SIDE, SPLITS, Split, Splits
from oddlot.workloads.formats.tar_members import Read, at_most, members

if TYPE_CHECKING:
    from types import ModuleType

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""Names of the classes, by number."""
MAX_BYTES = 1 << 20
"""Largest size of an image file. An image has 3 kB of pixels."""
FORM = re.compile(rf"({'|'.join(SPLITS)})/([^/]+)/([^/]+\.(?i:jpe?g|png))")

Photo = tuple[str, str, Read]
"""Archive or folder of an image, its name in it, and a function that reads it."""


def read_archives(paths: Sequence[Path]) -> Splits:
    """Return the images of all these archives.

    Raise UsageError, with the archive, the member and its fault, if one is invalid.
    """
    return _read((str(path), name, read) for path in paths for name, read in members(path))


def read_tree(folder: Path, files: Sequence[Path]) -> Splits:
    """Return the images in these files of a folder.

    Raise UsageError, with the file and its fault, if one is invalid.
    """
    return _read(
        (str(folder), file.relative_to(folder).as_posix(), partial(_content, file)) for file in files
    )


def tree_files(folder: Path) -> list[Path]:
    """Return the content of the class folders of both splits, sorted."""
    splits = (folder / split for split in SPLITS if (folder / split).is_dir())
    kinds = (kind for split in splits for kind in sorted(split.iterdir()) if kind.is_dir())
    return [file for kind in kinds for file in sorted(kind.iterdir())]


def is_tree(folder: Path) -> bool:
    """Return whether the folder has images in subfolders SPLIT/CLASS."""
    return any((folder / split / kind).is_dir() for split in SPLITS for kind in CLASSES)


def _content(file: Path, most: int) -> bytes:
    if not file.is_file():
        raise UsageError("not a regular file", "not_a_file")
    try:
        with file.open("rb") as stream:
            return at_most(most, stream)
    except OSError as error:
        reason = error.strerror
        raise UsageError(f"it cannot be read: {reason}", "unreadable_file", reason=reason) from None


def _read(photos: Iterable[Photo]) -> Splits:
    """Return both splits, sorted by class and name."""
    image = _pillow()
    pixels = {split: bytearray() for split in SPLITS}
    names: dict[str, dict[tuple[int, str], int]] = {split: {} for split in SPLITS}
    with warnings.catch_warnings():
        warnings.simplefilter("error", image.DecompressionBombWarning)
        for where, name, read in _visible(photos):
            try:
                split, key = _place(name)
                if key in names[split]:
                    raise UsageError("there are two files of this name", "duplicate_name")
                pixels[split] += _pixels(image, read(MAX_BYTES))
            except UsageError as error:
                raise error.with_message(
                    f"{where}: {short(name)}: {error}", path=where, member=name
                ) from None
            names[split][key] = len(names[split])
    return {split: _sorted(pixels[split], names[split]) for split in SPLITS}


def _visible(photos: Iterable[Photo]) -> Iterator[Photo]:
    """Return the images without hidden files of file managers."""
    return (photo for photo in photos if not photo[1].rpartition("/")[2].startswith("."))


def _place(name: str) -> tuple[str, tuple[int, str]]:
    """Return the split of an image, and its class and file name."""
    form = FORM.fullmatch(name)
    if form is None:
        message = f"its path must be {SPLITS[0]} or {SPLITS[1]}, then /CLASS/NAME.jpg or .png"
        raise UsageError(message, "invalid_name")
    split, kind, file = form.groups()
    if kind not in CLASSES:
        message = f"unknown class {short(kind)}. {or_nearest(kind, CLASSES)}"
        raise UnknownName("class", kind, CLASSES).with_message(message)
    return split, (CLASSES.index(kind), file)


def _pixels(image: "ModuleType", content: bytes) -> bytes:
    """Return the bytes of an image, row by row, with the three colors of a pixel next to each other."""
    try:
        with image.open(BytesIO(content), formats=("JPEG", "PNG")) as picture:
            if picture.size != (SIDE, SIDE):  # from the header: nothing is decoded yet
                message = f"it has {picture.width} x {picture.height} pixels, not {SIDE} x {SIDE}"
                raise UsageError(message, "wrong_size", size=picture.size)
            if picture.mode != "RGB":
                message = f"its pixels are {picture.mode}, not RGB: convert it"
                raise UsageError(message, "not_rgb", mode=picture.mode)
            flat: bytes = picture.tobytes()
            return flat
    except UsageError:
        raise
    except image.UnidentifiedImageError:
        raise UsageError("neither a JPEG nor a PNG image", "other_format") from None
    except Exception as error:  # noqa: BLE001 - decoders raise various exceptions for damaged data
        raise UsageError(f"it cannot be decoded: {error}", "damaged_file", reason=str(error)) from None


def _sorted(pixels: bytearray, names: dict[tuple[int, str], int]) -> Split:
    keys = sorted(names)
    rows = np.frombuffer(pixels, np.uint8).reshape(-1, SIDE, SIDE, 3)
    images = rows[[names[key] for key in keys]].transpose(0, 3, 1, 2)
    return np.ascontiguousarray(images), np.array([label for label, _ in keys], np.int64)


def _pillow() -> "ModuleType":
    try:
        from PIL import Image
    except ImportError:
        message = (
            "pictures in JPEG and PNG files are decoded by Pillow, which is not installed: pip install pillow"
        )
        raise UsageError(message, "not_installed", package="Pillow") from None
    return Image
