"""Checks of `oddlot xmc-generate` before it makes a dataset."""

from math import isfinite
from pathlib import Path

from oddlot.core.errors import InvalidValue, UsageError


def check_average(name: str, given: float, of: str, most: int) -> None:
    """Raise UsageError unless the mean number per point is finite and at most `most`."""
    if not isfinite(given):
        raise InvalidValue(name, given, "a finite number")
    if given > most:
        raise InvalidValue(name, given, f"at most {of} {most}")


def check_place(folder: str, force: bool) -> None:
    """Raise UsageError if a dataset cannot be written into this folder."""
    if not folder or Path(folder).is_file():
        raise UsageError(f"{folder!r} is not a folder", "not_a_folder", path=folder)
    for name in ("train.txt", "train.txt.gz", "test.txt", "test.txt.gz"):
        if (there := Path(folder) / name).exists() and not force:
            told = f"{there} already exists: choose another DIR, or use --force to overwrite it"
            raise UsageError(told, "already_there", path=str(there))
        if there.is_dir():
            raise UsageError(f"{there} cannot be overwritten: it is a folder", "not_a_file", path=str(there))
