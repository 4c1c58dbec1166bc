"""The log of a run in a file: one line a record, so that every figure can be computed again."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any, get_args, get_origin

from oddlot.core import words as w
from oddlot.core.conductor import Conductor
from oddlot.core.errors import CheckpointError, JobError
from oddlot.core.plain import from_plain, to_plain, type_of
from oddlot.core.spans import samples_in

FORMAT = 1
_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _refuse(constant: str) -> None:
    """ValueError: NaN and infinities are never written."""
    raise ValueError(constant)


_from_json = json.JSONDecoder(parse_constant=_refuse).decode


class Log:
    """Writes records as JSON lines, the first line telling how to rebuild the conductor.

    Opened on an existing file it goes on behind the last whole line, or behind so many records as are `sound`. Lines
    reach the file at least once a second of the run's time, as long as `keep_up` is called.
    """

    def __init__(self, path: Path, conductor: Conductor, sound: int | None = None) -> None:
        self.path = path
        self.records = 0
        self._flushed = 0.0
        with self._disk():
            if path.exists():
                lines = _whole_lines(path).splitlines(keepends=True)
                whole = b"".join(lines if sound is None else lines[: 1 + sound])
                self.records = max(0, whole.count(b"\n") - 1)
                os.truncate(path, len(whole))
            self._file = path.open("a", encoding="utf-8")
        if self._file.tell() == 0:
            strategy = _place_of(type_of(conductor.strategy))
            start = {key: value for key, value in conductor.to_plain().items() if key != "rng"}
            self._write({"is": "Header", "format": FORMAT, "strategy": strategy, "conductor": start})

    def __call__(self, record: w.Record) -> None:
        """Append one record."""
        self._write(to_plain(record))
        self.records += 1
        self.keep_up(record.now)

    def keep_up(self, now: float) -> None:
        """Flush if that was a second ago."""
        if now - self._flushed >= 1.0:
            self._flushed = now
            self.flush()

    def flush(self) -> None:
        """Bring every line to the file."""
        with self._disk():
            self._file.flush()

    def close(self) -> None:
        """Close the file; flush it before to hear of what cannot be written."""
        with suppress(OSError):
            self._file.close()

    def _write(self, plain: dict[str, Any]) -> None:
        line = _to_json(plain)
        with self._disk():
            self._file.write(line + "\n")

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path, reason = str(self.path), error.strerror
            told = f"cannot write the log {path} ({reason}): make room, then resume the run"
            raise JobError(told, "unwritable_file", path=path, reason=reason) from error


def read_header(path: Path) -> dict[str, Any]:
    """The first line of a log: `conductor`, the books at the beginning, and `strategy`, where its class is defined."""
    header: dict[str, Any] = _read_line(path, 1, _first_line(path))
    if header.get("format") != FORMAT:
        given = header.get("format")
        told = f"{path} has format {given}, this version of oddlot reads {FORMAT}"
        raise CheckpointError(told, "other_format", path=str(path), format=given)
    return header


def read_log(path: Path) -> Iterator[w.Record]:
    """The records of a log, in order; an unfinished last line is left out.

    Raises CheckpointError naming the line that is damaged, before which all is sound.
    """
    for number, line in enumerate(_whole_lines(path).splitlines(), 1):
        found = _read_line(path, number, line)
        if number > 1:
            yield found


def read_record(path: Path, number: int, line: bytes) -> w.Record:
    """One line of a log but its first. CheckpointError: it is damaged."""
    record: w.Record = _read_line(path, number, line)
    return record


def _read_line(path: Path, number: int, line: bytes) -> Any:
    """The header or a record."""
    try:
        plain = _from_json(line.decode())
        if plain["is"] != ("Record" if number > 1 else "Header"):
            raise ValueError
        if number > 1 and not 0 <= plain["now"] < inf:
            raise ValueError
        return from_plain(w.Record, plain) if number > 1 else plain
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        told = f"{path}:{number} is damaged: restore the file from a copy"
        raise CheckpointError(told, "damaged_file", path=str(path), line=number) from None


def read_sound(path: Path) -> tuple[list[w.Record], CheckpointError | None]:
    """The records before the first damaged line, and an error about that line; None where there is none."""
    records = []
    try:
        for record in read_log(path):
            records.append(record)  # noqa: PERF402 - what came before the damage is kept
    except CheckpointError as error:
        if not records:
            raise
        line = error.fields["line"]
        return records, error.retold(f"{path}:{line} is damaged and left out, with all that follows")
    return records, None


def surviving(records: Iterable[w.Record], until: int | None = None) -> list[w.Record]:
    """The history that holds: what came after a checkpoint that was resumed from is left out.

    With `until`, the run is about to be resumed from the checkpoint that was made after so many records.
    """
    return [record for number, record in numbered(records) if until is None or number < until]


def numbered(records: Iterable[w.Record]) -> list[tuple[int, w.Record]]:
    """The history that holds, each record with its number in the log, from 0."""
    kept: list[tuple[int, w.Record]] = []
    for number, record in enumerate(records):
        if isinstance(record.event, w.Resumed):
            kept = [(old, before) for old, before in kept if old < record.event.after_record]
        kept.append((number, record))
    return kept


def is_void(records: Sequence[w.Record], count: int) -> bool:
    """Whether what was saved after so many records of this log is of a history that a resume has made void."""
    resumes = ((place, r.event) for place, r in enumerate(records) if isinstance(r.event, w.Resumed))
    return any(event.after_record < count <= place for place, event in resumes)


def given_out(records: Iterable[w.Record]) -> int:
    """How many samples were given out in these records, and in those that they had made void."""
    total = 0
    for record in records:
        total += sum(samples_in(start.task.spans) for start in record.actions if isinstance(start, w.Start))
        total += record.event.samples_lost if isinstance(record.event, w.Resumed) else 0
    return total


def _first_line(path: Path) -> bytes:
    with _readable(path), path.open("rb") as file:
        line = file.readline()
    return line if line.endswith(b"\n") else b""


def _whole_lines(path: Path) -> bytes:
    with _readable(path):
        data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror
        raise CheckpointError(
            f"cannot read the log {path} ({reason}): restore it from a copy, or begin anew in another folder",
            "unreadable_file",
            path=str(path),
            reason=reason,
        ) from None


def _place_of(kind: Any) -> str:
    """`package.module:Class`, or `package.module:Class[package.module:Inner]`."""
    held = ",".join(map(_place_of, get_args(kind)))
    kind = get_origin(kind) or kind
    return f"{kind.__module__}:{kind.__qualname__}" + (f"[{held}]" if held else "")
