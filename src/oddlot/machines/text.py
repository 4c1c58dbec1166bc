"""Numbers from text files that a TOML table names."""

from collections.abc import Callable, Iterable, Iterator
from math import inf, nan
from pathlib import Path

from pydantic import ValidationInfo

from oddlot.core.errors import UsageError


def path_of(file: object, info: ValidationInfo) -> Path:
    """Where a table's `file` lies: beside the TOML file, unless it says otherwise."""
    if not isinstance(file, str) or not file:
        raise UsageError(f"file = {file!r} must be the path of a text file")
    folder: Path = (info.context or {}).get("folder", Path())
    return folder / file


def read_lines(
    file: object,
    info: ValidationInfo,
    what: str,
    read: Callable[[list[str]], Iterable[float]] | None = None,
) -> tuple[float, ...]:
    """The numbers of a text file beside the table's own, one a line; blank lines are passed over."""
    path = path_of(file, info)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"file = {str(path)!r} cannot be read as {what}: {why}") from None
    try:
        return tuple((read or numbers)(lines))
    except UsageError as error:
        raise UsageError(f"file = {str(path)!r}: {error}") from None


def numbers(lines: list[str]) -> Iterator[float]:
    """Each line's; blank lines are passed over. UsageError names the line."""
    for number, line in enumerate(lines, 1):
        try:
            value = float(line) if line.strip() else None
        except ValueError:
            value = nan
        if value is not None and not 0 <= value < inf:
            raise UsageError(f"line {number}: {line!r} is no number that is finite and not negative")
        if value is not None:
            yield value
