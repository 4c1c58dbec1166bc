"""IDX files, the format of the MNIST database: big-endian arrays with a small header, often gzipped.

The header has two zero bytes, one for the dtype, one for the number of dimensions, and four for each dimension.
"""

import gzip
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from oddlot.core.support.errors import UsageError
from oddlot.core.support.validation import most_unpacked
from oddlot.machines.text_files import unreadable
from oddlot.workloads.data_folders import found_instead, looked_in, roots

DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MAX_DIMENSIONS = 64  # numpy's limit; the format allows 255
CHUNK = 1 << 20


class Readable(Protocol):
    """A file open for reading bytes."""

    def read(self, size: int, /) -> bytes: ...


def read_idx(path: Path) -> NDArray[Any]:
    """Return the array of an IDX file (gzipped if its name ends in .gz), writable and in this machine's byte order.

    Raise UsageError, with the file and its fault, if it is invalid. Memory use is limited by the size of the data.
    """
    try:
        most = most_unpacked(path.stat().st_size) if path.suffix == ".gz" else None
        with path.open("rb") if most is None else gzip.open(path) as stream:
            return _read(stream, most)
    except UsageError as error:
        message = f"{path} is not a complete IDX file: {error}. Download it again"
        raise error.with_message(message, path=str(path)) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        message = f"{path} is not a complete gzip file: {error}. Download it again"
        raise UsageError(message, "damaged_file", path=str(path), reason=str(error)) from None
    except OSError as error:
        raise unreadable(path, error) from None


def find_idx(
    dataset: str, names: Sequence[str], source: str, data_dir: str | Path | None = None
) -> list[Path]:
    """Return the paths of a dataset's files, plain or gzipped. All must be in one folder.

    The folder is `data_dir` or, by default, $ODDLOT_DATA, or a subfolder with the name of the dataset. Raise
    UsageError, with the missing files, the searched folders and the source, if a file is missing.
    """
    folders = [folder for root in roots(data_dir) for folder in (root / dataset, root)]
    best: list[Path] = []
    for folder in folders:
        here = [folder / (name + end) for name in names for end in ("", ".gz")]
        found = {path.name.removesuffix(".gz"): path for path in here if path.is_file()}
        if len(found) == len(names):
            return [found[name] for name in names]
        best = max(best, list(found.values()), key=len)
    raise _missing(dataset, names, source, list(map(str, folders)), best)


def _missing(
    dataset: str, names: Sequence[str], source: str, folders: list[str], best: Sequence[Path]
) -> UsageError:
    there = {path.name.removesuffix(".gz") for path in best}
    missing = [name for name in names if name not in there]
    beside = f" (the others are in {best[0].parent})" if best else ""
    instead, fields = found_instead([best[0].parent] if best else folders, missing)
    return UsageError(
        f"files of {dataset} are missing: {', '.join(f'{name}[.gz]' for name in missing)}{beside}. "
        f"{looked_in(folders)}. {instead}Download them from {source} into one folder, and pass it as data_dir (--data) "
        "or in $ODDLOT_DATA",
        "missing_data",
        "data_dir",
        dataset=dataset,
        files=missing,
        looked_in=folders,
        others_in=str(best[0].parent) if best else None,
        **fields,
    )


def _read(stream: Readable, most: int | None) -> NDArray[Any]:
    """Return the array. Raise UsageError if the header is invalid, or claims more bytes than `most`."""
    head = _read_up_to(stream, 4)
    if len(head) < 4 or head[:2] != b"\0\0":
        given = head.hex(" ")
        message = f"it starts with the bytes {given or '(none)'}, not with 00 00 and two more"
        raise UsageError(message, "other_format", given=given)
    if head[2] not in DTYPES:
        known = ", ".join(f"{code:#04x}" for code in DTYPES)
        message = f"its dtype code is {head[2]:#04x}, not one of {known}"
        raise UsageError(message, "unknown_dtype", given=head[2])
    if not 1 <= head[3] <= MAX_DIMENSIONS:
        message = f"it claims {head[3]} dimensions, not 1 to {MAX_DIMENSIONS}"
        raise UsageError(message, "invalid_dimensions", given=head[3])
    sizes = _read_up_to(stream, 4 * head[3])
    if len(sizes) < 4 * head[3]:
        raise UsageError("it ends within its header", "truncated_header")
    shape = [int(size) for size in np.frombuffer(sizes, ">u4")]
    dtype = np.dtype(DTYPES[head[2]])
    return _read_array(stream, shape, dtype, most)


def _read_array(stream: Readable, shape: list[int], dtype: np.dtype[Any], most: int | None) -> NDArray[Any]:
    size = prod(shape) * dtype.itemsize
    if most is not None and size > most:
        message = f"its header claims {size} bytes of data, shape {shape}, too much for a compressed file of its size"
        raise UsageError(message, "unpacks_to_too_much", shape=shape, claimed=size, most=most)
    data = _read_up_to(stream, size + 1)
    if len(data) < size:
        message = f"its header claims {size} bytes of data, shape {shape}, but only {len(data)} follow"
        raise UsageError(message, "truncated_file", shape=shape, bytes=len(data), claimed=size)
    if len(data) > size:
        message = f"it has more data than the {size} bytes that its header claims, shape {shape}"
        raise UsageError(message, "trailing_bytes", shape=shape, claimed=size)
    try:
        return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
    except ValueError as error:  # one dimension is 0, and the others are too large for numpy
        message = f"shape {shape} is impossible: {error}"
        raise UsageError(message, "impossible_shape", shape=shape, reason=str(error)) from None


def _read_up_to(stream: Readable, size: int) -> bytearray:
    """Read in pieces, because a malicious header may claim more than the available memory."""
    data = bytearray()
    while piece := stream.read(min(CHUNK, size - len(data))):
        data += piece
    return data
