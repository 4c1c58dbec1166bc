"""Folders of datasets: the search for files, checks before writing, and checks of their size."""

import os
from collections.abc import Sequence
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

from oddlot.core.support.errors import InvalidValue, UsageError


def check_average(name: str, given: float, of: str, most: int) -> None:
    """Raise UsageError unless a mean number per data point is finite and at most `most`."""
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
            message = f"{there} already exists: choose another DIR, or use --force to overwrite it"
            raise UsageError(message, "file_exists", path=str(there))
        if there.is_dir():
            raise UsageError(f"{there} cannot be overwritten: it is a folder", "not_a_file", path=str(there))


MAX_NAMED = 5
"""Largest number of files that an error lists."""
MAX_LISTED = 1000
"""Largest number of files to read from a folder."""


def roots(data_dir: str | Path | None) -> list[Path]:
    """Return the folder `data_dir` or, if it is not set, the folder $ODDLOT_DATA. Empty if neither is set.

    Raise UsageError if `data_dir` is not a folder.
    """
    if data_dir:
        check_folder(data_dir)
    return [Path(root).expanduser() for root in (data_dir or os.environ.get("ODDLOT_DATA"),) if root]


def check_folder(data_dir: str | Path) -> None:
    """Raise UsageError if this is not a folder."""
    path = Path(data_dir).expanduser()
    if path.is_dir():
        return
    if path.exists():
        message = f"{path} is a file: pass the folder with the data"
        raise UsageError(message, "not_a_folder", "data_dir", path=str(path))
    message = f"there is no folder {path}: pass the folder with the data"
    raise UsageError(message, "missing_folder", "data_dir", path=str(path))


def looked_in(folders: Sequence[str]) -> str:
    """Return a sentence with the searched folders."""
    return f"Searched {', '.join(folders)}" if folders else "No folder was given"


def found_instead(folders: Sequence[str | Path], missing: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
    """Return a sentence about the files in the first of these folders that exists, and fields for the error.

    The field `there` has the first file names. `other_names` maps missing names to similar names in the folder.
    """
    folder = next((Path(each) for each in folders if Path(each).is_dir()), None)
    names = _listed(folder) if folder else []
    alike = other_names(names, missing)
    fields = {"there": names[:MAX_NAMED], "other_names": alike}
    if not folder:
        return "", fields
    if alike:
        pairs = ", ".join(f"{name} to {wanted}" for wanted, name in list(alike.items())[:MAX_NAMED])
        return f"{folder} has files with other names: rename {pairs}. ", fields
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return f"{folder} has {', '.join(names[:MAX_NAMED]) or 'no files'}{more}. ", fields


def _listed(folder: Path) -> list[str]:
    """Return the names in a folder, with a slash after folders, or an empty list if it cannot be read."""
    try:
        return sorted(path.name + "/" * path.is_dir() for path in islice(folder.iterdir(), MAX_LISTED))
    except OSError:
        return []


def other_names(names: Sequence[str], missing: Sequence[str]) -> dict[str, str]:
    """Map each missing name to the first of `names` that starts with the same letters and digits, if any.

    Names of gzipped files keep their suffix: `a.idx.gz` is suggested for `a-idx.gz`.
    """
    found = dict[str, str]()
    for wanted in missing:
        begin = _letters(wanted)
        for name in names:
            packed = ".gz" if name.endswith(".gz") else ""
            if _letters(name.removesuffix(".gz")).startswith(begin):
                found.setdefault(wanted + packed, name)
    return found


def _letters(name: str) -> str:
    """Return the letters and digits of a file name in lower case."""
    return "".join(filter(str.isalnum, name.casefold()))
