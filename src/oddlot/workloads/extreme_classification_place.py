"""What `oddlot xmc-generate` checks before it makes a set."""

from math import isfinite
from pathlib import Path

from oddlot.core.errors import InvalidValue, UsageError


def check_average(name: str, given: float, of: str, most: int) -> None:
    """UsageError: a point cannot have so many on average."""
    if not isfinite(given):
        raise InvalidValue(name, given, "a finite number")
    if given > most:
        raise InvalidValue(name, given, f"no more than {of} {most}")


def check_place(folder: str, force: bool) -> None:
    """UsageError: a set cannot be written there."""
    if not folder or Path(folder).is_file():
        raise UsageError(f"{folder!r} is no folder", "not_a_folder", path=folder)
    for name in ("train.txt", "train.txt.gz", "test.txt", "test.txt.gz"):
        if (there := Path(folder) / name).exists() and not force:
            told = f"{there} is there: choose another DIR, or --force to throw the set away"
            raise UsageError(told, "already_there", path=str(there))
        if there.is_dir():
            raise UsageError(f"{there} cannot be thrown away: it is a folder", "not_a_file", path=str(there))
