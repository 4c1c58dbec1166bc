"""Files that commands and TOML tables refer to: checks of their kind, and text files with numbers."""

import tomllib
from collections.abc import Callable, Iterable, Iterator
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING

from oddlot.core.support.errors import InvalidValue, UsageError
from oddlot.machines.text_files import read_packed

if TYPE_CHECKING:
    from pydantic import ValidationInfo

KEYS = {
    "job": ("workload",),
    "fleet": ("machines", "zones", "offers"),
    "chaos": ("faults", "capacity"),
}
"""Top-level keys that identify each kind of file."""
USE = {
    "job": "oddlot train {path}",
    "fleet": "oddlot simulate WORKLOAD --machines {path}",
    "chaos": "oddlot train WORKLOAD --chaos {path}",
}
"""Example command for each kind of file."""


def check_kinds(workload: str, machines: str | None = None, chaos: str | None = None) -> None:
    """Raise UsageError if one of these files is of another kind. All other errors are left to the readers."""
    paths = {"job": workload if workload.endswith(".toml") else None, "fleet": machines, "chaos": chaos}
    flags = {"job": "", "fleet": "--machines ", "chaos": "--chaos "}
    for wanted, path in paths.items():
        if path and (kind := _kind_of(Path(path).expanduser(), wanted)) != wanted:
            use = USE[kind].format(path=path)
            flag = f"{flags[wanted]}{path}"
            message = (
                f"{flag}: this is a {kind} file, but a {wanted} file is needed. Use it like this: `{use}`"
            )
            raise UsageError(message, "other_kind_of_file", path=path, flag=flag, kind=kind, wanted=wanted)


def _kind_of(path: Path, wanted: str) -> str:
    """Return the kind of a file. Return `wanted` unless it has keys of another kind only."""
    from oddlot.config.toml_errors import read_text
    from oddlot.config.toml_text import check_text

    try:
        text = read_text(path)
        check_text(text)
        keys = tomllib.loads(text).keys()
    except (UsageError, ValueError, RecursionError):
        return wanted
    if keys & {*KEYS[wanted]}:
        return wanted
    return next((kind for kind, known in KEYS.items() if keys & {*known}), wanted)


def path_of(file: object, info: "ValidationInfo") -> Path:
    """Return the path in a table's key `file`. Relative paths start from the folder of the TOML file."""
    if not isinstance(file, str) or not file:
        raise InvalidValue("file", file, "the path of a text file")
    folder: Path = (info.context or {}).get("folder", Path())
    return folder / Path(file).expanduser()


def read_lines(
    file: object,
    info: "ValidationInfo",
    what: str,
    read: Callable[[list[str]], Iterable[float]],
) -> tuple[float, ...]:
    """Return the numbers that `read` extracts from the lines of a text file. Raise UsageError if the file has no
    numbers."""
    path = path_of(file, info)
    found = read_packed(path, lambda text: tuple(read(text.splitlines())))
    if not found:
        raise UsageError(f"{path} has no {what}: write one number per line", "empty_file", path=str(path))
    return found


def numbers(lines: list[str], above_zero: bool = False) -> Iterator[float]:
    """Yield the number of each line that is not blank. Raise UsageError if a line is invalid."""
    must = "above 0" if above_zero else "not negative"
    for number, line in enumerate(lines, 1):
        try:
            value = float(line) if line.strip() else None
        except ValueError:
            value = nan
        if value is not None and not (0 <= value < inf and (value or not above_zero)):
            message = f"line {number}: {line!r} must be a finite number and {must}"
            raise UsageError(message, "invalid_line", line=number, given=line)
        if value is not None:
            yield value
