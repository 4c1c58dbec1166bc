"""CIFAR-10 as single pictures, `train/cat/0001.jpg`: in tar archives or in folders."""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oddlot.core.errors import UnknownName, UsageError, short
from oddlot.core.suggestions import or_nearest
from oddlot.workloads.formats.decoded_cache import SIDE, SPLITS, Split, Splits
from oddlot.workloads.formats.tar_members import Read, at_most, members

if TYPE_CHECKING:
    from types import ModuleType

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""a class's place here is its number"""
MAX_BYTES = 1 << 20
"""of one picture: it has 3 kB of pixels"""
FORM = re.compile(rf"({'|'.join(SPLITS)})/([^/]+)/([^/]+\.(?i:jpe?g|png))")

Photo = tuple[str, str, Read]
"""the archive or folder, the picture's name in it, and how to read it"""


def read_archives(paths: Sequence[Path]) -> Splits:
    """The pictures of all these archives together. UsageError names archive, member and fault."""
    return _read((str(path), name, read) for path in paths for name, read in members(path))


def read_tree(folder: Path, files: Sequence[Path]) -> Splits:
    """The pictures in these files of a folder. UsageError names the file and its fault."""
    return _read(
        (str(folder), file.relative_to(folder).as_posix(), partial(_content, file)) for file in files
    )


def tree_files(folder: Path) -> list[Path]:
    """What is in the classes' folders of both splits, sorted."""
    splits = (folder / split for split in SPLITS if (folder / split).is_dir())
    kinds = (kind for split in splits for kind in sorted(split.iterdir()) if kind.is_dir())
    return [file for kind in kinds for file in sorted(kind.iterdir())]


def is_tree(folder: Path) -> bool:
    """Whether pictures are stored here in folders SPLIT/CLASS."""
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
    """Both splits in the order of class and name, whatever the order in the archives."""
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
                raise error.retold(f"{where}: {short(name)}: {error}", path=where, member=name) from None
            names[split][key] = len(names[split])
    return {split: _sorted(pixels[split], names[split]) for split in SPLITS}


def _visible(photos: Iterable[Photo]) -> Iterator[Photo]:
    """Without the hidden files that desktops leave behind."""
    return (photo for photo in photos if not photo[1].rpartition("/")[2].startswith("."))


def _place(name: str) -> tuple[str, tuple[int, str]]:
    """The split, and the class with the file's name."""
    form = FORM.fullmatch(name)
    if form is None:
        told = f"its path must be {SPLITS[0]} or {SPLITS[1]}, then /CLASS/NAME.jpg or .png"
        raise UsageError(told, "invalid_name")
    split, kind, file = form.groups()
    if kind not in CLASSES:
        told = f"unknown class {short(kind)}. {or_nearest(kind, CLASSES)}"
        raise UnknownName("class", kind, CLASSES).retold(told)
    return split, (CLASSES.index(kind), file)


def _pixels(image: "ModuleType", content: bytes) -> bytes:
    """The bytes of a picture, row by row, the three colours of a pixel side by side."""
    try:
        with image.open(BytesIO(content), formats=("JPEG", "PNG")) as picture:
            if picture.size != (SIDE, SIDE):  # told by the header: nothing is decoded yet
                told = f"it has {picture.width} x {picture.height} pixels, not {SIDE} x {SIDE}"
                raise UsageError(told, "wrong_size", size=picture.size)
            if picture.mode != "RGB":
                told = f"its pixels are {picture.mode}, not RGB: convert it"
                raise UsageError(told, "not_rgb", mode=picture.mode)
            flat: bytes = picture.tobytes()
            return flat
    except UsageError:
        raise
    except image.UnidentifiedImageError:
        raise UsageError("neither a JPEG nor a PNG image", "other_format") from None
    except Exception as error:  # noqa: BLE001 - decoders raise many things about damaged bytes
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
        told = (
            "pictures in JPEG and PNG files are decoded by Pillow, which is not installed: pip install pillow"
        )
        raise UsageError(told, "not_installed", package="Pillow") from None
    return Image
