"""Names of run folders: runs/NAME-1, runs/NAME-2 and so on."""

import re
from pathlib import Path

from oddlot.core.errors import UsageError

RUNS = Path("runs")


def numbers(name: str) -> list[int]:
    """The numbers N of the runs in runs/NAME-N."""
    folders = RUNS.iterdir() if RUNS.is_dir() else ()
    found = (re.fullmatch(re.escape(name) + r"-(\d+)", folder.name) for folder in folders)
    return [int(match[1]) for match in found if match]


def next_free(name: str) -> Path:
    """A new folder: of two runs that begin at once, each gets its own. UsageError: none can be made."""
    number = max(numbers(name), default=0)
    while True:
        number += 1
        folder = RUNS / f"{name}-{number}"
        try:
            RUNS.mkdir(exist_ok=True)
            folder.mkdir()
        except OSError as error:
            if not isinstance(error, FileExistsError) or not folder.exists():
                told = f"cannot use {folder} as the run folder: {error.strerror}"
                reason = error.strerror or str(error)
                raise UsageError(told, "unusable_folder", path=str(folder), reason=reason) from None
        else:
            return folder


def newest(name: str) -> Path:
    """Return the newest run of this name. UsageError: there is none."""
    from oddlot.history.run_folder import RunFolder

    for number in sorted(numbers(name), reverse=True):
        if RunFolder(RUNS / f"{name}-{number}").is_begun:
            return RUNS / f"{name}-{number}"
    told = f"there is no run {RUNS}/{name}-N to resume: name its folder with --out"
    raise UsageError(told, "no_run", path=f"{RUNS}/{name}-N")
