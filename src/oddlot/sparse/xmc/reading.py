"""Sets in the text format of the Extreme Classification Repository."""

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.csr import Csr
from oddlot.sparse.kernels import parsing

POWERS = 10.0 ** np.arange(309)
MOST_COLUMNS = np.iinfo(np.int32).max
MOST_DIGITS = 18
SHOWN = 40
"""characters of a bad line"""
SENTENCES = {
    parsing.LABEL: "labels are whole numbers with commas between them",
    parsing.LABEL_RANGE: "a label is not below the {labels:,} that the first line says",
    parsing.COLON: "after a feature's number comes a colon and its value",
    parsing.FEATURE: "here is neither a label nor a feature, which are whole numbers",
    parsing.FEATURE_RANGE: "a feature is not below the {features:,} that the first line says",
    parsing.VALUE: "a value is not a finite number",
}
PACKED = {
    b"\x1f\x8b": "gzipped: its name has to end in .gz",
    b"BZh": "packed by bzip2: unpack it",
    b"\xfd7zXZ": "packed by xz: unpack it",
    b"PK": "a zip archive: unpack it",
    b"\xef\xbb\xbf": "a text that begins with a byte order mark: leave that out",
}
"""what files are that begin so"""


class BadSet(ValueError):
    """A file is no set; the message names the file, the line and what is wrong with it."""


def read_xmc(path: str | Path) -> tuple[Csr, Csr]:
    """Features and labels of a file whose first line is `points features labels`; gzipped if its name ends in .gz.

    BadSet: the first line that is wrong. A point's labels and features are in the order of the file.
    """
    path = Path(path)
    if path.is_dir():
        raise BadSet(f"{path} is a folder: one of its files is expected, such as {path / 'train.txt'}")
    data = _unzipped(path)
    before = data.find(b"\n") + 1 or len(data)
    points, features, labels = _sizes(path, data[:before])
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
        raise BadSet(f"{path}:{fault[1] + 2}: {_told(data, fault, before, features, labels)}")
    if found != points:
        last = f"the last in line {found + 1}; an empty line is one too"
        raise BadSet(f"{path}: the first line says {points:,} points, there are {found:,}, {last}")
    y_columns = y_columns[: y_starts[-1]]
    y_values = np.ones(len(y_columns), np.float32)
    x = Csr(x_starts, x_columns, x_values, (points, features))
    return x, Csr(y_starts, y_columns, y_values, (points, labels))


def _unzipped(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadSet(f"{path} is not a whole gzip file: {error}") from None


def _sizes(path: Path, head: bytes) -> tuple[int, int, int]:
    """Points, features and labels, as the first line says."""
    sizes = [int(part) if part.isdigit() and len(part) <= MOST_DIGITS else -1 for part in head.split()]
    if len(sizes) != 3 or min(sizes) < 0:
        packed = next((f"; it is {what}" for mark, what in PACKED.items() if head.startswith(mark)), "")
        told = f"three whole numbers, but {head[:SHOWN]!r}{packed}"
        raise BadSet(f"{path}:1: the first line is not `points features labels`, {told}")
    points, features, labels = sizes
    if max(features, labels) > MOST_COLUMNS:
        most = f"at most {MOST_COLUMNS:,} can be told"
        raise BadSet(f"{path}:1: {max(features, labels):,} features or labels, {most}")
    return points, features, labels


def _told(data: bytes, fault: NDArray[np.int64], before: int, features: int, labels: int) -> str:
    what, _, at = (int(number) for number in fault)
    at += before
    begin = max(data.rfind(b"\n", 0, at) + 1, at - SHOWN)
    stop = data.find(b"\n", at)
    near = data[begin : min(len(data) if stop < 0 else stop, at + SHOWN)].decode(errors="replace")
    return f"{SENTENCES[what].format(features=features, labels=labels)}, near {near!r}"
