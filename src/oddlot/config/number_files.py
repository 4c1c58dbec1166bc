"""Reading of the text files with numbers that TOML tables refer to."""

from collections.abc import Callable, Iterable, Iterator
from math import inf, nan
from pathlib import Path

from pydantic import ValidationInfo

from oddlot.core.errors import InvalidValue, UsageError
from oddlot.machines.text_files import read_packed


def path_of(file: object, info: ValidationInfo) -> Path:
    """Return the path of a table's `file`, relative to the TOML file."""
    if not isinstance(file, str) or not file:
        raise InvalidValue("file", file, "the path of a text file")
    folder: Path = (info.context or {}).get("folder", Path())
    return folder / Path(file).expanduser()


def read_lines(
    file: object,
    info: ValidationInfo,
    what: str,
    read: Callable[[list[str]], Iterable[float]],
) -> tuple[float, ...]:
    """Return the numbers that `read` extracts from the lines of a text file. Raise UsageError if there are none."""
    path = path_of(file, info)
    found = read_packed(path, lambda text: tuple(read(text.splitlines())))
    if not found:
        raise UsageError(f"{path} has no {what}: write one number per line", "empty_file", path=str(path))
    return found


def numbers(lines: list[str], above_zero: bool = False) -> Iterator[float]:
    """Yield the number of each line that is not blank. Raise UsageError about an invalid line."""
    must = "above 0" if above_zero else "not negative"
    for number, line in enumerate(lines, 1):
        try:
            value = float(line) if line.strip() else None
        except ValueError:
            value = nan
        if value is not None and not (0 <= value < inf and (value or not above_zero)):
            told = f"line {number}: {line!r} must be a finite number and {must}"
            raise UsageError(told, "invalid_line", line=number, given=line)
        if value is not None:
            yield value
