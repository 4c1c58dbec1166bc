"""Writing and reading the log of a run, a file with one checksummed JSON line per record."""

import json
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any
from zlib import crc32

from oddlot.checkpoint.local_storage import open_to_append, open_to_read, read_file, sync_path
from oddlot.core.commands import Blend, Start, Step
from oddlot.core.conductor import Conductor
from oddlot.core.events import Arrived, Cancelled, Changed, Evaluated, Resumed
from oddlot.core.records import Record
from oddlot.core.sample_spans import samples_in
from oddlot.core.support.errors import CheckpointError, JobError
from oddlot.core.support.serialization import DAMAGED, MOST, from_plain, to_plain

_MEMBER, _END = b',"crc":"', b'"}'
_DIGITS = 8
_REST = len(_MEMBER) + _DIGITS + len(_END)


def first_line(text: bytes) -> bytes:
    """Return the text up to its first checksum. Empty if it has no checksum."""
    start = text.find(_MEMBER)
    return b"" if start < 0 else text[: start + _REST]


class Chain:
    """The running checksum of all lines so far."""

    def __init__(self) -> None:
        self.crc = 0

    def seal(self, text: str) -> bytes:
        """Return the line for a JSON object with at least one member, including its checksum."""
        start = text[:-1].encode()
        self.crc = crc32(start, self.crc)
        return b'%b,"crc":"%08x"}\n' % (start, self.crc)

    def open(self, line: bytes) -> bytes:
        """Return the JSON object of the next line. Pass the line without its newline.

        If the line is damaged, raise ValueError and keep the state.
        """
        start, crc = line[:-_REST], crc32(line[:-_REST], self.crc)
        if line[-_REST:] != b'%b%08x"}' % (_MEMBER, crc):
            raise ValueError("the checksum does not match")
        self.crc = crc
        return start + b"}"


FORMAT = 4
_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


_COUNTS: dict[type, tuple[str, ...]] = {
    Cancelled: ("bytes_down", "bytes_data"),
    Changed: ("version",),
    Evaluated: ("version",),
    Resumed: ("after_record", "samples_lost", "bytes_up_lost", "bytes_down_lost", "bytes_data_lost"),
}
"""Fields that must not be negative."""


def _reject(constant: str) -> None:
    """Raise ValueError, because a valid log has no NaN or infinity."""
    raise ValueError(constant)


_from_json = json.JSONDecoder(parse_constant=_reject).decode


class Log:
    """Writes records as JSON lines. The first line has the state of the conductor at the start.

    Writing continues after the last valid line of an existing file, or after its first `sound` records. Lines are
    flushed once a second if `keep_up` is called often enough.
    """

    def __init__(self, path: Path, conductor: Conductor, sound: int | None = None) -> None:
        self.path = path
        self._flushed = 0.0
        self._chain = Chain()
        with self._disk():
            lines = list(_sound_lines(path, self._chain, sound)) if path.exists() else []
            self.records = max(0, len(lines) - 1)
            self._bytes = sum(map(len, lines))
            self._file = open_to_append(path)
            self._file.truncate(self._bytes)
            sync_path(path.parent)
        if not lines:
            start = {key: value for key, value in conductor.to_plain().items() if key != "rng"}
            self._write({"is": "Header", "format": FORMAT, "conductor": start})

    def __call__(self, record: Record) -> None:
        """Append one record."""
        self._write(to_plain(record))
        self.records += 1
        self.keep_up(record.now)

    def keep_up(self, now: float) -> None:
        """Flush if the last flush was at least one second ago."""
        if now - self._flushed >= 1.0:
            self._flushed = now
            self.flush()

    def flush(self) -> None:
        """Write all buffered lines to the file."""
        with self._disk():
            self._file.flush()

    def check(self) -> None:
        """Flush, and raise JobError if the file at the path was replaced or changed."""
        self.flush()
        with self._disk():
            ours, there = os.fstat(self._file.fileno()), self.path.stat() if self.path.exists() else None
        if there is None or not os.path.samestat(ours, there) or there.st_size != self._bytes:
            found = -1 if there is None else there.st_size
            how = f"{self._bytes:,} bytes were written, but the file has {max(0, found):,}"
            raise log_changed(self.path, how, written=self._bytes, found=found)

    def close(self) -> None:
        """Close the file, and ignore errors. Call `flush` first to detect them."""
        with suppress(OSError):
            self._file.close()

    def _write(self, plain: dict[str, Any]) -> None:
        line = self._chain.seal(_to_json(plain))
        with self._disk():
            self._file.write(line)
        self._bytes += len(line)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path, reason = str(self.path), error.strerror
            message = f"cannot write the log {path} ({reason}). Free disk space, then resume the run"
            raise JobError(message, "unwritable_file", path=path, reason=reason) from error


def log_changed(path: Path, how: str, **fields: Any) -> JobError:
    """Return the error for a log that another program changed during a run."""
    message = (
        f"the log {path} was removed, replaced or changed while this run was writing it: {how}. Restore it from a "
        "copy, then resume the run"
    )
    return JobError(message, "log_changed", path=str(path), **fields)


class LineReader:
    """Reads the lines of a log in order, and verifies that each follows the previous line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self._chain = Chain()

    def header(self, line: bytes) -> dict[str, Any]:
        """Read the first line. Raise CheckpointError if it is damaged or has another format."""
        self.number = 1
        try:
            plain = self._header_of(line)
        except DAMAGED:
            raise self._damaged() from None
        given = plain["format"]
        if given != FORMAT:
            message = f"{self.path} has format {given}, but this version of oddlot reads format {FORMAT}"
            raise CheckpointError(message, "other_format", path=str(self.path), format=given)
        return plain

    def record(self, line: bytes) -> Record:
        """Read the next line. Raise CheckpointError if it is damaged."""
        self.number += 1
        try:
            plain = _from_json(self._chain.open(line).decode())
            if plain["is"] != "Record":
                raise ValueError("not a record")
            record: Record = from_plain(Record, plain)
            _check_counts(record)
        except DAMAGED:
            raise self._damaged() from None
        return record

    def check_unfinished(self, rest: bytes) -> None:
        """Raise CheckpointError if a complete line without its newline follows the last newline."""
        self.number += 1
        line = first_line(rest)
        if len(line) < len(rest):
            with suppress(ValueError):
                self._chain.open(line)
                raise self._damaged()

    def _header_of(self, line: bytes) -> dict[str, Any]:
        plain = _from_json(line.decode())
        if plain["is"] != "Header":
            raise ValueError("not a header")
        if plain["format"] == FORMAT:
            plain = _from_json(self._chain.open(line).decode())
            if not 1 <= from_plain(int, plain["conductor"]["ledger"]["size"]) < MOST:
                raise ValueError("no size")
        return dict(plain)

    def _damaged(self) -> CheckpointError:
        message = f"{self.path}:{self.number} is damaged: restore the file from a copy"
        return CheckpointError(message, "damaged_file", path=str(self.path), line=self.number)


def _check_counts(record: Record) -> None:
    """Raise ValueError if a number in a record is out of range."""
    event = record.event
    counts: tuple[int, ...] = ()
    if type(event) is Arrived:
        facts = event.update
        counts = (
            facts.based_on,
            facts.samples,
            facts.bytes_up,
            facts.bytes_down,
            facts.bytes_data,
            facts.read or 0,
        )
    elif type(event) in _COUNTS:
        counts = tuple(getattr(event, name) for name in _COUNTS[type(event)])
        if isinstance(event, Resumed) and event.segment is not None:
            counts += (event.segment.batch - 1,)
    for action in record.actions:
        if type(action) is Start:
            task = action.task
            counts += (task.version, *(number for span in task.spans for number in span))
            counts += tuple(stop - start for _, start, stop in task.spans)
        elif (type(action) is Step or type(action) is Blend) and not action.shares:
            raise ValueError("a merge of nothing")
    if (counts and min(counts) < 0) or not 0 <= record.now < inf:
        raise ValueError("a number below 0")


def read_header(path: Path) -> dict[str, Any]:
    """Return the first line of a log. Its key `conductor` has the state at the start."""
    with _readable(path), open_to_read(path) as file:
        line = file.readline()
    return LineReader(path).header(line.removesuffix(b"\n") if line.endswith(b"\n") else b"")


def read_log(path: Path) -> Iterator[Record]:
    """Yield the records of a log in order. An incomplete last line is ignored.

    Raise CheckpointError at the first damaged line.
    """
    *whole, rest = _read(path).split(b"\n")
    lines = LineReader(path)
    for line in whole:
        if lines.number:
            yield lines.record(line)
        else:
            lines.header(line)
    lines.check_unfinished(rest)


def has_header(path: Path) -> bool:
    """Return whether the log has a complete first line."""
    with open_to_read(path) as file:
        return file.readline().endswith(b"\n")


def has_records(path: Path) -> bool:
    """Return whether the log exists and has a complete line after the header."""
    with suppress(FileNotFoundError), open_to_read(path) as file:
        return file.readline().endswith(b"\n") and file.readline().endswith(b"\n")
    return False


def read_sound(path: Path) -> tuple[list[Record], CheckpointError | None]:
    """Return the records before the first damaged line, and the error about this line, if any."""
    records = []
    try:
        for record in read_log(path):
            records.append(record)  # noqa: PERF402 - records before the damage are kept
    except CheckpointError as error:
        if not records:
            raise
        line = error.fields["line"]
        return records, error.with_message(f"{path}:{line} is damaged; it and all later lines are ignored")
    return records, None


def surviving(records: Iterable[Record], until: int | None = None) -> list[Record]:
    """Return the valid history, without work that was lost at resumes.

    Lost work are the records between a checkpoint and the resume from it. `until`: number of records at the checkpoint
    that will be used to resume the run, or None if the run is not resumed.
    """
    return [record for number, record in numbered(records) if until is None or number < until]


def numbered(records: Iterable[Record]) -> list[tuple[int, Record]]:
    """Return the valid history, each record with its number in the log, from 0."""
    kept: list[tuple[int, Record]] = []
    for number, record in enumerate(records):
        if isinstance(record.event, Resumed):
            del kept[bisect_left(kept, record.event.after_record, key=lambda each: each[0]) :]
        kept.append((number, record))
    return kept


def is_void(records: Sequence[Record], count: int) -> bool:
    """Return whether the state after `count` records is lost work of a resume."""
    resumes = ((place, r.event) for place, r in enumerate(records) if isinstance(r.event, Resumed))
    return any(event.after_record < count <= place for place, event in resumes)


def given_out(records: Iterable[Record]) -> int:
    """Return the number of samples that were assigned in these records, including lost work."""
    total = 0
    for record in records:
        total += sum(samples_in(start.task.spans) for start in record.actions if isinstance(start, Start))
        total += record.event.samples_lost if isinstance(record.event, Resumed) else 0
    return total


def _sound_lines(path: Path, chain: Chain, count: int | None) -> Iterator[bytes]:
    """Yield the valid lines of a log, with newlines, up to the first damaged line.

    With `count`, yield at most the header and this number of records.
    """
    whole = _read(path).split(b"\n")[:-1]
    for line in whole if count is None else whole[: 1 + count]:
        try:
            chain.open(line)
        except ValueError:
            return
        yield line + b"\n"


def _read(path: Path) -> bytes:
    with _readable(path):
        return read_file(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror
        raise CheckpointError(
            f"cannot read the log {path} ({reason}): restore it from a copy, or start again in another folder",
            "unreadable_file",
            path=str(path),
            reason=reason,
        ) from None
