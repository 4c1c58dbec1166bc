"""CIFAR-10 as published: Python 2 pickles in a folder or a tar archive. No code of a pickle is executed."""

import io
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.core.support.errors import UsageError, short
from oddlot.machines.text_files import check_regular
from oddlot.workloads.formats.decoded_cache import SIDE, Split, Splits
from oddlot.workloads.formats.tar_members import at_most, members

FOLDER = "cifar-10-batches-py"
ARCHIVE = "cifar-10-python.tar.gz"
PARTS = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
MAX_BYTES = 1 << 25
"""Largest size of a pickle. The published files have 31 MB."""
ROW = 3 * SIDE * SIDE
CALLS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}
"""Functions that a pickled array of numbers calls, by NumPy's older and newer names."""
BYTE_TYPES = ("u1", "uint8", b"u1", b"uint8")


class Call:
    """A call that a pickle requests. It is recorded, not made."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, *arguments: Any) -> None:
        self.name, self.arguments, self.state = name, arguments, None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Name:
    """A function that a pickle may call."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: Any) -> Call:
        return Call(self.name, *arguments)


class Unpickler(pickle._Unpickler):
    """Unpickler that returns plain values, with a `Call` for each pickled array. It imports nothing.

    It extends the Python implementation, because a few bytes can make the C implementation allocate gigabytes of
    memory.
    """

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in CALLS:
            asked = f"{module}.{name}"
            message = f"it imports {short(asked)}, which arrays do not need: it may be malicious"
            raise UsageError(message, "unsafe_pickle", given=asked)
        return Name(name)


def read_folder(folder: Path) -> Splits:
    """Return the images of the six files in an unpacked folder.

    Raise UsageError, with the file and its fault, if one is invalid.
    """

    def content(name: str) -> bytes:
        check_regular(folder / name)
        try:
            with (folder / name).open("rb") as file:
                return at_most(MAX_BYTES, file)
        except OSError as error:
            reason = error.strerror
            raise UsageError(f"it cannot be read: {reason}", "unreadable_file", reason=reason) from None

    return _splits(folder, "/", content)


def read_archive(path: Path) -> Splits:
    """Return the images of the six files in an archive.

    Raise UsageError, with the archive, the file and its fault, if one is invalid.
    """
    wanted = {f"{FOLDER}/{name}": name for names in PARTS.values() for name in names}
    found: dict[str, bytes] = {}
    for name, read in members(path):
        if name in wanted:
            try:
                found[wanted[name]] = read(MAX_BYTES)
            except UsageError as error:
                raise error.with_message(f"{path}: {name}: {error}", path=str(path), member=name) from None

    def content(name: str) -> bytes:
        if name not in found:
            raise UsageError("it is missing. Download the archive again", "missing_file")
        return found[name]

    return _splits(path, f": {FOLDER}/", content)


def _splits(path: Path, inside: str, content: Callable[[str], bytes]) -> Splits:
    splits: dict[str, Split] = {}
    for split, names in PARTS.items():
        parts = []
        for name in names:
            try:
                parts.append(read_batch(content(name)))
            except UsageError as error:
                raise error.with_message(
                    f"{path}{inside}{name}: {error}", path=str(path), member=name
                ) from None
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        splits[split] = images, labels
    return splits


def read_batch(content: bytes) -> Split:
    """Return the images, uint8 [n, 3, 32, 32], and classes, int64 [n], of one pickle.

    Raise UsageError if it is invalid.
    """
    batch = _unpickled(content)
    if not isinstance(batch, Mapping) or not {b"data", b"labels"} <= batch.keys():
        raise UsageError("it is not a dict with b'data' and b'labels'", "other_format")
    images, labels = _array(batch[b"data"]), batch[b"labels"]
    if images.ndim != 2 or images.shape[1] != ROW:
        shape = list(images.shape)
        raise UsageError(f"its b'data' has shape {shape}, not [n, {ROW}]", "wrong_shape", shape=shape)
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label <= 9 for label in labels):
        raise UsageError("its b'labels' must be a list of classes from 0 to 9", "invalid_labels")
    if len(labels) != len(images):
        message = f"it has {len(images)} pictures and {len(labels)} labels"
        raise UsageError(message, "different_lengths", images=len(images), labels=len(labels))
    return images.reshape(-1, 3, SIDE, SIDE), np.array(labels, np.int64)


def _unpickled(content: bytes) -> Any:
    try:
        return Unpickler(io.BytesIO(content), encoding="bytes").load()
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - invalid pickles raise various exceptions
        reason = f"{type(error).__name__}: {error}"
        message = f"it is not a complete pickle ({reason}). Download it again"
        raise UsageError(message, "damaged_file", reason=reason) from None


def _array(value: Any) -> NDArray[np.uint8]:
    """Return the array of a recorded `Call`. Raise UsageError unless it is an array of bytes.

    NumPy gets only the data and the checked shape of the pickle.
    """
    try:
        _, shape, dtype, in_columns, data = value.state
        plain = value.name == "_reconstruct" and all(type(side) is int and side >= 0 for side in shape)
        if not plain or dtype.name != "dtype" or dtype.arguments[0] not in BYTE_TYPES:
            raise ValueError
        return np.frombuffer(data, np.uint8).reshape(shape, order="F" if in_columns else "C")
    except (AttributeError, IndexError, TypeError, ValueError):
        raise UsageError("its b'data' must be an array of bytes", "wrong_dtype") from None
