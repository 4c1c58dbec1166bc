"""Reading and writing datasets in the text format of the Extreme Classification Repository."""

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.csr import Csr
from oddlot.sparse.errors import coded
from oddlot.sparse.kernels import parsing


def write_xmc(path: str | Path, x: Csr, y: Csr) -> None:
    """Write features and labels atomically, with values to 5 digits. Gzip the file if its name ends in .gz."""
    path = Path(path).expanduser()
    new = path.with_name(f"{path.name}.new")
    try:
        _write(new, path.suffix == ".gz", x, y)
        new.replace(path)
    except BaseException:  # including Ctrl-C
        new.unlink(missing_ok=True)
        raise


def _write(path: Path, zipped: bool, x: Csr, y: Csr) -> None:
    with gzip.open(path, "wt", compresslevel=1) if zipped else path.open("w") as file:
        file.write(f"{len(x)} {x.shape[1]} {y.shape[1]}\n")
        for point in range(len(x)):
            labels = y.indices[y.indptr[point] : y.indptr[point + 1]]
            own = slice(x.indptr[point], x.indptr[point + 1])
            features = zip(x.indices[own].tolist(), x.data[own].tolist(), strict=True)
            message = " ".join(f"{column}:{value:.5g}" for column, value in features)
            file.write(f"{','.join(map(str, labels.tolist()))} {message}\n")


POWERS = 10.0 ** np.arange(309)
MAX_COLUMNS = np.iinfo(np.int32).max
MAX_DIGITS = 18
PIECE_BYTES, MIN_BYTES, MAX_RATIO = 1 << 20, 1 << 26, 200
"""Bytes to decompress at once, and limits of the decompressed size. It may be up to `MIN_BYTES`, or `MAX_RATIO` times
the compressed size (usually 3-20 times)."""
SHOWN = 40
"""Number of characters of an invalid line that errors show."""
FAULTS = {
    parsing.LABEL: ("invalid_label", "labels must be whole numbers, separated by commas"),
    parsing.LABEL_RANGE: (
        "label_out_of_range",
        "a label is not below {labels:,}, the number in the first line",
    ),
    parsing.COLON: ("missing_colon", "a feature must be followed by a colon and its value"),
    parsing.FEATURE: ("invalid_feature", "labels and features must be whole numbers"),
    parsing.FEATURE_RANGE: (
        "feature_out_of_range",
        "a feature is not below {features:,}, the number in the first line",
    ),
    parsing.VALUE: ("invalid_number", "a value is not a finite number"),
}
OTHERS = {
    b"\x1f\x8b": ("gzip", "gzipped: rename it to end in .gz"),
    b"BZh": ("bzip2", "compressed by bzip2: decompress it"),
    b"\xfd7zXZ": ("xz", "compressed by xz: decompress it"),
    b"PK": ("zip", "a zip archive: unpack it"),
    b"\xef\xbb\xbf": ("byte order mark", "a text with a byte order mark: remove the mark"),
}
"""Formats of files by their first bytes."""


class BadSet(ValueError):
    """A file is not a valid dataset. The message contains the file, the line and the fault."""


def read_xmc(path: str | Path) -> tuple[Csr, Csr]:
    """Read features and labels from a file with the first line `points features labels`, gzipped if it ends in .gz.

    Labels and features of a point keep their order. Raise BadSet at the first invalid line.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        message = f"{path} is a folder: pass one of its files, such as {path / 'train.txt'}"
        raise coded(BadSet(message), "not_a_file", path=str(path))
    if path.exists() and not path.is_file():  # reading a pipe may never end
        message = f"{path} is a pipe, a socket or a device: save its content in a file and pass that file"
        raise coded(BadSet(message), "not_a_file", path=str(path))
    data = _unzipped(path)
    before = data.find(b"\n") + 1 or len(data)
    points, features, labels = _sizes(path, bytes(data[:before]))
    text = np.frombuffer(data, np.uint8)[before:]
    marks = np.zeros(3, np.int64)
    parsing.count_marks(text, marks)
    lines = int(marks[0]) + bool(len(text) and text[-1] != 10)
    x_starts, y_starts = np.empty(lines + 1, np.int64), np.empty(lines + 1, np.int64)
    x_columns, x_values = np.empty(marks[1], np.int32), np.empty(marks[1], np.float32)
    y_columns, fault = np.empty(marks[2] + lines, np.int32), np.zeros(3, np.int64)
    found = parsing.parse(
        text, POWERS, lines, features, labels, x_starts, x_columns, x_values, y_starts, y_columns, fault
    )
    if fault[0]:
        raise _fault(path, data, fault, before, features=features, labels=labels)
    if found != points:
        last = f"the last one in line {found + 1} (empty lines count)"
        error = BadSet(f"{path}: the first line says {points:,} points, but there are {found:,}, {last}")
        raise coded(
            error, "different_lengths", path=str(path), name="points", given=int(found), expected=points
        )
    y_columns = y_columns[: y_starts[-1]]
    y_values = np.ones(len(y_columns), np.float32)
    x = Csr(x_starts, x_columns, x_values, (points, features))
    return x, Csr(y_starts, y_columns, y_values, (points, labels))


def _unzipped(path: Path) -> bytes | bytearray:
    """Return the decompressed content. Raise BadSet if it is damaged, not a dataset, or too large."""
    if path.suffix != ".gz":
        return path.read_bytes()
    data = bytearray()
    try:
        with path.open("rb") as packed, gzip.open(packed) as file:
            while piece := file.read(PIECE_BYTES):
                if not data:
                    _sizes(path, piece.partition(b"\n")[0])
                data += piece
                if len(data) > (most := max(MIN_BYTES, MAX_RATIO * packed.tell())):
                    message = (
                        f"{path} unpacks to more than {most:,} bytes, too much for a dataset of its size"
                    )
                    raise coded(BadSet(message), "unpacks_to_too_much", path=str(path), most=most)
        return data
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        message = f"{path} is not a complete gzip file: {error}"
        raise coded(BadSet(message), "damaged_file", path=str(path), reason=str(error)) from None


def _sizes(path: Path, head: bytes) -> tuple[int, int, int]:
    """Return the numbers of points, features and labels from the first line."""
    sizes = [int(part) if part.isdigit() and len(part) <= MAX_DIGITS else -1 for part in head.split()]
    if len(sizes) != 3 or min(sizes) < 0:
        form, message = next((what for mark, what in OTHERS.items() if head.startswith(mark)), ("", ""))
        message = f"three whole numbers, but is {head[:SHOWN]!r}{'. The file is ' if form else ''}{message}"
        error = BadSet(f"{path}:1: the first line must be `points features labels`, {message}")
        where = {"path": str(path), "line": 1}
        raise coded(error, "other_format" if form else "invalid_header", **where, format=form)
    points, features, labels = sizes
    if max(features, labels) > MAX_COLUMNS:
        given, most = max(features, labels), f"at most {MAX_COLUMNS:,} are supported"
        error = BadSet(f"{path}:1: {given:,} features or labels: {most}")
        raise coded(error, "too_many_columns", path=str(path), line=1, given=given, most=MAX_COLUMNS)
    return points, features, labels


def _fault(
    path: Path, data: bytes | bytearray, fault: NDArray[np.int64], before: int, **sizes: int
) -> BadSet:
    """Return the error for a `fault` of the parser: kind, line (from 0 after the first line) and position."""
    what, line, at = (int(number) for number in fault)
    at += before
    begin = max(data.rfind(b"\n", 0, at) + 1, at - SHOWN)
    stop = data.find(b"\n", at)
    near = data[begin : min(len(data) if stop < 0 else stop, at + SHOWN)].decode(errors="replace")
    code, message = FAULTS[what]
    error = BadSet(f"{path}:{line + 2}: {message.format(**sizes)}, near {near!r}")
    return coded(error, code, path=str(path), line=line + 2, given=near, **sizes)
