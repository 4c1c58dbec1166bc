"""Values of the fields of a row: times, durations, counts and states."""

from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite

Row = Mapping[str, str]
"""Fields of a line by the column's name in lower case."""
MAX_SECONDS = 1e12
"""Largest time and duration. Times since 1970 are about 1.5e9."""
MAX_UNITS = 1_000_000
"""Largest number of GPUs or cores."""
MISSING = frozenset({"", "none", "null", "na", "nan", "unknown", "n/a"})
STATES = {
    "completed": (
        "completed",
        "complete",
        "pass",
        "passed",
        "succeeded",
        "success",
        "done",
        "finished",
        "terminated",
    ),
    "cancelled": ("cancelled", "canceled", "cancel", "killed", "revoked"),
    "failed": (
        *("failed", "fail", "failure", "error", "timeout", "node_fail", "out_of_memory", "preempted"),
        *("boot_fail", "deadline"),
    ),
}
"""Names of the states in traces."""
NOT_ENDED = frozenset(
    {"running", "pending", "suspended", "requeued", "resizing", "completing", "configuring"}
)
"""Slurm's states of jobs that have not ended."""
_STATE_OF = {name: state for state, names in STATES.items() for name in names}


class BadRow(Exception):
    """A row cannot be used. The message is the reason."""


def delimiter_of(header: str) -> str:
    """Return the character that separates the names of a header line: a comma, `|`, `;` or a tab."""
    return max(",|;\t", key=header.count)


def present(row: Row, column: str) -> str | None:
    """Return a field without surrounding spaces, or None if it is missing."""
    text = row.get(column, "").strip()
    return None if text.lower() in MISSING else text


def seconds(text: str | None, what: str) -> float:
    """Return a number of seconds of at least 0. Raise BadRow otherwise. `what` is the name for the message."""
    if text is None:
        raise BadRow(f"no {what}")
    try:
        value = float(text)
    except ValueError:
        value = _clock_seconds(text, what)
    if value < 0:
        raise BadRow(f"negative {what}")
    if not value <= MAX_SECONDS:
        raise BadRow(f"unreadable {what}")
    return value


def time(text: str | None, what: str) -> float:
    """Return a time in seconds: a number, or a date (ISO 8601, UTC if it has no zone) as seconds since 1970."""
    if text is None:
        raise BadRow(f"no {what}")
    try:
        value = float(text)
    except ValueError:
        try:
            date = datetime.fromisoformat(text)
            value = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise BadRow(f"unreadable {what}") from None
    if not isfinite(value) or abs(value) > MAX_SECONDS:
        raise BadRow(f"unreadable {what}")
    return value


def optional_time(text: str | None) -> float | None:
    """Return a time, or None if it is missing or unreadable."""
    try:
        return time(text, "time")
    except BadRow:
        return None


def count(text: str | None, what: str) -> int:
    """Return a number of GPUs or cores. A missing one is 0."""
    if text is None:
        return 0
    try:
        value = float(text)
    except ValueError:
        raise BadRow(f"unreadable number of {what}") from None
    if not isfinite(value) or value != int(value):
        raise BadRow(f"unreadable number of {what}")
    if value < 0:
        raise BadRow(f"negative number of {what}")
    if value > MAX_UNITS:
        raise BadRow(f"more than {MAX_UNITS:,} {what}")
    return int(value)


def state(text: str | None) -> str:
    """Return "completed", "failed" or "cancelled", or an empty text for an unknown state."""
    return _STATE_OF.get(text.split()[0].lower(), "") if text else ""


def _clock_seconds(text: str, what: str) -> float:
    """Return the seconds of `[days-]hours:minutes:seconds` or `minutes:seconds`."""
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    numbers = [days or "0", *parts]
    if not 2 <= len(parts) <= 3 or not all(part.replace(".", "", 1).isdecimal() for part in numbers):
        raise BadRow(f"unreadable {what}")
    value = 0.0
    for part in parts:
        value = value * 60 + float(part)
    return value + 86_400 * float(days or 0)
