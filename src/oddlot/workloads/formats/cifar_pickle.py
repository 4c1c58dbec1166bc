"""CIFAR-10's published form: pickles of Python 2, in a folder or a tar archive. They are read, and never executed."""

import io
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.core.errors import UsageError, short
from oddlot.machines.text_files import check_regular
from oddlot.workloads.formats.decoded_cache import SIDE, Split, Splits
from oddlot.workloads.formats.tar_members import at_most, members

FOLDER = "cifar-10-batches-py"
ARCHIVE = "cifar-10-python.tar.gz"
PARTS = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
MAX_BYTES = 1 << 25
"""of one pickle: the published ones have 31 MB"""
ROW = 3 * SIDE * SIDE
CALLS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}
"""what a pickle of an array of numbers names, by numpy's older and newer name"""
BYTE_TYPES = ("u1", "uint8", b"u1", b"uint8")


class Call:
    """A call that a pickle asks for: remembered, and not made."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, *arguments: Any) -> None:
        self.name, self.arguments, self.state = name, arguments, None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Name:
    """What a pickle may name, and have called."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: Any) -> Call:
        return Call(self.name, *arguments)


class Unpickler(pickle._Unpickler):
    """Makes plain values, and a `Call` of whatever a pickled array names. Nothing that a pickle names is imported.

    It is the one written in Python: that in C takes gigabytes of memory when a few bytes tell it to.
    """

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in CALLS:
            asked = f"{module}.{name}"
            told = f"it imports {short(asked)}, which arrays do not need: it may be malicious"
            raise UsageError(told, "unsafe_pickle", given=asked)
        return Name(name)


def read_folder(folder: Path) -> Splits:
    """The pictures of the six files in an unpacked folder. UsageError names the file and its fault."""

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
    """The pictures of the six files in an archive. UsageError names archive, file and fault."""
    wanted = {f"{FOLDER}/{name}": name for names in PARTS.values() for name in names}
    found: dict[str, bytes] = {}
    for name, read in members(path):
        if name in wanted:
            try:
                found[wanted[name]] = read(MAX_BYTES)
            except UsageError as error:
                raise error.retold(f"{path}: {name}: {error}", path=str(path), member=name) from None

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
                raise error.retold(f"{path}{inside}{name}: {error}", path=str(path), member=name) from None
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        splits[split] = images, labels
    return splits


def read_batch(content: bytes) -> Split:
    """Pictures uint8 [n, 3, 32, 32] and classes int64 [n] of one pickle. UsageError says what is wrong with it."""
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
        told = f"it has {len(images)} pictures and {len(labels)} labels"
        raise UsageError(told, "different_lengths", images=len(images), labels=len(labels))
    return images.reshape(-1, 3, SIDE, SIDE), np.array(labels, np.int64)


def _unpickled(content: bytes) -> Any:
    try:
        return Unpickler(io.BytesIO(content), encoding="bytes").load()
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - bytes that are no pickle may raise anything
        reason = f"{type(error).__name__}: {error}"
        told = f"it is not a complete pickle ({reason}). Download it again"
        raise UsageError(told, "damaged_file", reason=reason) from None


def _array(value: Any) -> NDArray[np.uint8]:
    """The array whose making a pickle has asked for; numpy never sees what the pickle says but for plain bytes."""
    try:
        _, shape, dtype, in_columns, data = value.state
        plain = value.name == "_reconstruct" and all(type(side) is int and side >= 0 for side in shape)
        if not plain or dtype.name != "dtype" or dtype.arguments[0] not in BYTE_TYPES:
            raise ValueError
        return np.frombuffer(data, np.uint8).reshape(shape, order="F" if in_columns else "C")
    except (AttributeError, IndexError, TypeError, ValueError):
        raise UsageError("its b'data' must be an array of bytes", "wrong_dtype") from None
