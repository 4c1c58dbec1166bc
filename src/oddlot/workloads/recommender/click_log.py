"""Logs of shown and clicked items: their columns, and the reading of CSV and Parquet files."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from io import StringIO
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from oddlot.core.support.errors import InvalidValue, UsageError
from oddlot.core.support.text import or_nearest
from oddlot.machines.text_files import check_regular, checked_path, read_packed, unreadable

PARQUET = ".parquet"
CLICKED = {"1": True, "0": False, "true": True, "false": False, "yes": True, "no": False}
CLICKED |= {"1.0": True, "0.0": False}
MAX_NAMED = 10
"""Largest number of columns that an error lists."""


@dataclass(frozen=True)
class Columns:
    """The columns of a log. Without a header, they are the numbers of the columns from 0."""

    user: str = "user"
    item: str = "item"
    time: str = "time"
    clicked: str = ""
    """Column with 1 for clicked and 0 for shown. Empty: every row is a click, unless there are ratings."""
    rating: str = ""
    """Column with ratings. A rating of at least `click_rating` counts as a click."""
    click_rating: float = 4.0
    separator: str = ","
    has_header: bool = True

    def names(self) -> list[str]:
        """Return the names of the columns to read: user, item, time and, if there is one, clicked or rating."""
        label = self.clicked or self.rating
        return [self.user, self.item, self.time, *([label] if label else [])]


@dataclass(frozen=True)
class ClickLog:
    """Shown items by user and time. Rows are sorted by user, and for a user by time.

    Rows of one user with the same time keep their order. Rows with the same user, item and time count once. They are a
    click if one of them is.
    """

    user_ids: NDArray[np.str_]
    """Distinct ids of the users, sorted, [users]."""
    item_ids: NDArray[np.str_]
    """Distinct ids of the items, sorted, [items]."""
    users: NDArray[np.int64]
    """Index of the user of each row, [rows]."""
    items: NDArray[np.int64]
    """Index of the item of each row, [rows]."""
    times: NDArray[np.float64]
    """Time of each row, in seconds or another unit, [rows]."""
    clicked: NDArray[np.bool_]
    """Whether each item was clicked, [rows]."""
    duplicates: int = 0
    """Number of rows that were left out, because they repeat the user, the item and the time of another row."""
    skipped: int = 0
    """Number of rows without a user or an item."""
    is_ordered: bool = True
    """Whether the rows of each user were given in the order of time."""

    @classmethod
    def of(cls, users: Any, items: Any, times: Any, clicked: Any = None, skipped: int = 0) -> Self:
        """Return the log of these rows, in any order. `clicked=None`: all rows are clicks.

        Ids are numbers or text, and are compared as text.
        """
        user_ids, user = np.unique(np.asarray(users).astype(np.str_), return_inverse=True)
        item_ids, item = np.unique(np.asarray(items).astype(np.str_), return_inverse=True)
        time = np.asarray(times, np.float64)
        clicks = np.ones(len(time), np.bool_) if clicked is None else np.asarray(clicked, np.bool_)
        by_user = np.argsort(user, kind="stable")
        steps = np.diff(time[by_user])[np.diff(user[by_user]) == 0]
        order = np.lexsort((time, user))  # stable
        kept, clicks = _distinct(user, item, time, clicks)
        order = order[kept[order]]
        return cls(
            user_ids,
            item_ids,
            user[order].astype(np.int64),
            item[order].astype(np.int64),
            time[order],
            clicks[order],
            int((~kept).sum()),
            skipped,
            not (steps < 0).any(),
        )

    def __len__(self) -> int:
        return len(self.users)

    @property
    def has_negatives(self) -> bool:
        """Whether the log has items that were shown and not clicked."""
        return not bool(self.clicked.all())

    @property
    def digest(self) -> int:
        """Hash of the ids and the rows, 64 bits with a sign."""
        found = blake2b(digest_size=8)
        for part in (self.user_ids, self.item_ids, self.users, self.items, self.times, self.clicked):
            found.update(part.tobytes())
        return int.from_bytes(found.digest(), "big", signed=True)

    @property
    def changes(self) -> list[str]:
        """Differences between the given rows and the log, as text."""
        found = [
            (self.skipped, "without a user or an item are left out"),
            (self.duplicates, "repeat the user, item and time of another row and count once"),
        ]
        texts = [f"{rows:,} of its rows {text}" for rows, text in found if rows]
        return texts + ["the rows of each user are sorted by time"] * (not self.is_ordered)

    def rows(self, kept: NDArray[Any]) -> "ClickLog":
        """Return the log of some rows, with all users and items. `kept` is a mask, or sorted indices."""
        parts = {name: getattr(self, name)[kept] for name in ("users", "items", "times", "clicked")}
        return replace(self, **parts)


def _distinct(
    user: NDArray[Any], item: NDArray[Any], time: NDArray[np.float64], clicked: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the first row of each user, item and time as a mask, and whether a row of them is a click."""
    order = np.lexsort((time, item, user))
    changed = [np.diff(part[order]) != 0 for part in (user, item, time)]
    first = np.concatenate([[True], np.logical_or.reduce(changed)])[: len(order)]
    starts = np.flatnonzero(first)
    kept, clicks = np.zeros(len(order), np.bool_), clicked.copy()
    kept[order[starts]] = True
    if len(starts):
        clicks[order[starts]] = np.logical_or.reduceat(clicked[order], starts)
    return kept, clicks


def read_log(path: str | Path, columns: Columns) -> ClickLog:
    """Read a log from a CSV file (plain or gzipped) or, with pyarrow, from a Parquet file.

    Times are numbers or dates in ISO 8601. Rows without a user or an item are skipped and counted.

    Raises:
        UsageError: The file is not readable, empty, lacks a column, or has an invalid value.
        InvalidValue: The separator cannot separate columns.
    """
    if columns.clicked and columns.rating:
        message = (
            f"click_column = {columns.clicked!r} and rating_column = {columns.rating!r}: use one of them"
        )
        raise UsageError(message, "two_labels", "rating_column")
    path = checked_path(path)
    try:
        if path.suffix == PARQUET:
            return _log(_parquet(path, columns), columns)
        return read_packed(path, lambda text: _log(_csv(text, columns), columns))
    except UsageError as error:
        if "path" in error.fields:
            raise
        raise error.with_message(f"{path}: {error}", path=str(path)) from None


@dataclass(frozen=True)
class _Table:
    """The columns user, item, time and, if there is one, clicked or rating of a file."""

    columns: Sequence[Sequence[Any]]
    lines: Sequence[int] = ()
    """Line of each row in the file. Empty for a Parquet file, which has no lines."""

    def error(self, row: int, text: str, code: str, **fields: Any) -> UsageError:
        """Return the error for a row, with its line in the file or, without lines, its number from 1."""
        kind, number = ("line", self.lines[row]) if self.lines else ("row", row + 1)
        return UsageError(f"{kind} {number}{text}", code, **{kind: number, **fields})


def _log(table: _Table, columns: Columns) -> ClickLog:
    """Return the log of a table."""
    users, items = (np.asarray([_text(one) for one in part]) for part in table.columns[:2])
    there = (users != "") & (items != "")
    if not there.any():
        raise UsageError("the log has no rows with a user and an item", "empty_log", rows=len(users))
    times = _numbers(table, 2, columns.time, there, _seconds)
    clicked = None
    if columns.rating:
        clicked = _numbers(table, 3, columns.rating, there, float) >= columns.click_rating
    elif columns.clicked:
        clicked = _numbers(table, 3, columns.clicked, there, _label) > 0
    return ClickLog.of(users[there], items[there], times, clicked, int((~there).sum()))


def _text(value: Any) -> str:
    """Return an id as text. Floats without a fraction, of integer columns with gaps in pandas, become integers."""
    if value is None or value != value:  # noqa: PLR0124 - NaN
        return ""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def _numbers(
    table: _Table, at_column: int, column: str, there: NDArray[np.bool_], parse: Any
) -> NDArray[np.float64]:
    """Return the values of a column as numbers. Raise UsageError, with the row, for an invalid value."""
    values, found = table.columns[at_column], np.empty(int(there.sum()))
    for at, row in enumerate(np.flatnonzero(there).tolist()):
        try:
            found[at] = parse(values[row])
        except (TypeError, ValueError, KeyError):
            found[at] = np.nan
        if not np.isfinite(found[at]):
            given = _text(values[row])
            text = f": {column} = {given!r} is not a valid value"
            raise table.error(row, text, "invalid_log_value", column=column, given=given)
    return found


def _seconds(value: Any) -> float:
    """Return a time as a number: seconds since 1970 for dates."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=value.tzinfo or UTC).timestamp()
    try:
        return float(value)
    except (TypeError, ValueError):
        return _seconds(datetime.fromisoformat(str(value).strip()))


def _label(value: Any) -> float:
    """Return whether a value means clicked."""
    return float(CLICKED[str(value).strip().lower()])


def parse_time(name: str, given: str) -> float:
    """Return the time of an option, a number or a date. Raise InvalidValue if it is neither."""
    try:
        return _seconds(given)
    except (TypeError, ValueError):
        raise InvalidValue(name, given, "a number or a date such as 2013-05-31") from None


def _csv(text: str, columns: Columns) -> _Table:
    """Return the columns of a CSV file, as text."""
    lines, rows = _rows(text, columns.separator.replace(r"\t", "\t"))
    if not rows:
        raise UsageError("the file is empty", "empty_log", rows=0)
    width = len(rows[0])
    header = rows[0] if columns.has_header else list(map(str, range(width)))
    places = _places(header, columns)
    lines, rows = lines[columns.has_header :], rows[columns.has_header :]
    for at, row in enumerate(rows):
        if len(row) != width:
            text = f" has {len(row)} columns, and the first line has {width}"
            raise _Table((), lines).error(at, text, "unequal_rows", columns=len(row), width=width)
    return _Table([[row[place] for row in rows] for place in places], lines)


def _rows(text: str, separator: str) -> tuple[list[int], list[list[str]]]:
    """Return the line and the cells of each row that is not blank. A separator of one character allows quotes."""
    if separator in ("", '"', "\r", "\n", "\r\n"):
        raise InvalidValue("separator", separator, "the text between columns, such as ;")
    file = StringIO(text, newline="" if len(separator) == 1 else None)  # quoted cells keep their line ends
    lines, rows, line = list[int](), list[list[str]](), 1
    reader = csv.reader(file, delimiter=separator) if len(separator) == 1 else None
    for row in reader or (each.rstrip("\n").split(separator) for each in file):
        if row not in ([], [""]):
            lines.append(line)
            rows.append(row)
        line = reader.line_num + 1 if reader else line + 1
    return lines, rows


def read_titles(path: str | Path) -> dict[str, str]:
    """Return the titles of items by id: the first two columns of a CSV file with a header, plain or gzipped.

    Raises:
        UsageError: The file is not readable, or a row has fewer than two columns.
    """
    return read_packed(path, _titles)


def _titles(text: str) -> dict[str, str]:
    lines, rows = _rows(text, ",")
    for at, row in enumerate(rows):
        if len(row) < 2:
            raise _Table((), lines).error(
                at, " has 1 column: ids and titles need 2", "unequal_rows", columns=1
            )
    return {row[0].strip(): row[1].strip() for row in rows[1:]}


def _parquet(path: Path, columns: Columns) -> _Table:
    """Return the columns of a Parquet file. Raise UsageError if it is not readable."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        message = f"{path} is a Parquet file, which needs pyarrow: run pip install 'oddlot[parquet]', or convert it to "
        message += "CSV"
        raise UsageError(message, "missing_library", library="pyarrow", path=str(path)) from None
    check_regular(path)
    try:
        with parquet.ParquetFile(path) as file:
            header = file.schema_arrow.names
            _places(header, columns)
            table = file.read(columns=list(dict.fromkeys(columns.names())))
        return _Table([table.column(name).to_pylist() for name in columns.names()])
    except OSError as error:
        raise unreadable(path, error) from None
    except ArrowException as error:
        message = f"{path} is not a Parquet file: {error}"
        raise UsageError(message, "damaged_file", path=str(path), reason=str(error)) from None


def _places(header: Sequence[str], columns: Columns) -> list[int]:
    """Return the indices of the columns to read. Raise UsageError if one is missing or has several places."""
    found = []
    for name in columns.names():
        if (count := list(header).count(name)) != 1:
            if count:
                message = f"{count} columns have the name {name!r}"
                raise UsageError(message, "duplicate_column", column=name, count=count)
            there = list(header[:MAX_NAMED])
            message = (
                f"there is no column {name!r}. {or_nearest(name, there)}. Name yours, as in "
                "--set workload.user_column=NAME"
            )
            raise UsageError(message, "missing_column", column=name, there=there)
        found.append(list(header).index(name))
    return found


def other_log(log: str = "") -> UsageError:
    """Return the error for a model of another log."""
    message = f"the log {log}".rstrip() + " has changed since the run: train again, or use the log of the run"
    return UsageError(message, "other_log", log=log)
