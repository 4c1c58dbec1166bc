"""CIFAR-10 with a few images, in each format that the workload reads. Programs that tests start import this too."""

import io
import pickle
import struct
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from oddlot.workloads.formats.cifar_pickle import FOLDER, PARTS
from oddlot.workloads.formats.decoded_cache import SPLITS
from oddlot.workloads.formats.image_folder import CLASSES

COUNTS = {"train": 2, "test": 1}
"""Number of images per class."""


def picture(label: int, number: int = 0) -> NDArray[np.uint8]:
    """Return an image (uint8, [32, 32, 3]): red encodes the row, green the column, blue the class and the number."""
    row, column = np.mgrid[:32, :32]
    blue = np.full((32, 32), 20 * label + number)
    return np.stack([8 * row, 8 * column, blue], axis=-1).astype(np.uint8)


def encoded(pixels: NDArray[np.uint8], form: str = "PNG", mode: str | None = None, **options: Any) -> bytes:
    image = Image.fromarray(pixels)
    image = image.convert(mode) if mode else image
    image.save(file := io.BytesIO(), form, **options)
    return file.getvalue()


def photos() -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each image, in reverse order. Readers must sort them by name."""
    for split in reversed(SPLITS):
        for label, kind in reversed(list(enumerate(CLASSES))):
            for number in reversed(range(COUNTS[split])):
                yield f"{split}/{kind}/{number:04}.png", encoded(picture(label, number))


def archive(path: Path, contents: Mapping[str, bytes]) -> Path:
    """Write a tar archive of these files, compressed according to its suffix. Return its path."""
    mode = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]  # a valid mode
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def tree(folder: Path, contents: Mapping[str, bytes]) -> Path:
    """Write these files into a folder. Return the folder."""
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def rows(numbers: range) -> tuple[NDArray[np.uint8], list[int]]:
    """Return images ([n, 3072], one plane per colour) and labels, as in the published files."""
    labels = [number % 10 for number in numbers]
    flat = [picture(number % 10, number // 10).transpose(2, 0, 1).reshape(-1) for number in numbers]
    return np.stack(flat), labels


def batches() -> dict[str, bytes]:
    """Return the contents of the six published files, with 20 training and 10 test images. Classes alternate."""
    cuts = [range(at, at + 4) for at in range(0, 20, 4)] + [range(10)]
    names = [name for names in PARTS.values() for name in names]
    return {f"{FOLDER}/{name}": pickled(*rows(cut)) for name, cut in zip(names, cuts, strict=True)}


def pickled(images: NDArray[Any], labels: list[int]) -> bytes:
    """Return a pickle as Python 2 and its NumPy wrote it, assembled from opcodes."""
    dtype = b"cnumpy\ndtype\n" + _text(b"u1") + _number(0) + _number(1) + b"\x87R"
    dtype += b"(" + _number(3) + _text(b"|") + b"NNN" + _number(-1) + _number(-1) + _number(0) + b"tb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        + _number(0)
        + b"\x85"
        + _text(b"b")
        + b"\x87R"
    )
    shape = b"(" + b"".join(map(_number, images.shape)) + b"t"
    array += b"(" + _number(1) + shape + dtype + b"\x89" + _text(images.tobytes()) + b"tb"
    classes = b"](" + b"".join(map(_number, labels)) + b"e"
    about = _text(b"batch_label") + _text(b"testing batch 1 of 1")
    content = b"\x80\x02}(" + about + _text(b"labels") + classes + _text(b"data") + array + b"u."
    again: dict[bytes, Any] = pickle.loads(content, encoding="bytes")
    assert again[b"labels"] == labels, "Python's own way reads it too"
    return content


def _text(content: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(content)) + content


def _number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)
