"""Names of run folders, runs/NAME-1, runs/NAME-2 and so on, and what the command line has written about a run."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oddlot.core.support.errors import UsageError
from oddlot.history.run_settings import COMMAND

RUNS = Path("runs")


def numbers(name: str) -> list[int]:
    """Return the numbers N of the folders runs/NAME-N."""
    folders = RUNS.iterdir() if RUNS.is_dir() else ()
    found = (re.fullmatch(re.escape(name) + r"-(\d+)", folder.name) for folder in folders)
    return [int(match[1]) for match in found if match]


def workload_of(about: Mapping[str, Any]) -> str:
    """Return the workload or job file of a run; empty if the command line did not start the run."""
    command = about.get(COMMAND)
    return str(command[1]) if isinstance(command, list) and len(command) > 1 else ""


def about_of_command(about: dict[str, Any]) -> dict[str, Any]:
    """Return `about` from run.json; an empty dict if the command line did not write it."""
    settings, overrides = about.get("settings"), about.get("overrides", [])
    triples = isinstance(overrides, list) and all(
        isinstance(one, list) and len(one) == 3 for one in overrides
    )
    return about if isinstance(settings, dict) and triples else {}


def is_run_of(about: Mapping[str, Any], workload: str) -> bool:
    """Return whether a run may be one of this workload or job file. A job file may be in another folder."""
    begun = workload_of(about)
    return not begun or Path(begun).name == Path(workload).name


def next_free(name: str) -> Path:
    """Create the next run folder. Runs that start at the same time get different folders.

    Raise UsageError if the folder cannot be created.
    """
    number = max(numbers(name), default=0)
    while True:
        number += 1
        folder = RUNS / f"{name}-{number}"
        try:
            RUNS.mkdir(exist_ok=True)
            folder.mkdir()
        except OSError as error:
            if not isinstance(error, FileExistsError) or not folder.exists():
                message = f"cannot use {folder} as the run folder: {error.strerror}"
                reason = error.strerror or str(error)
                raise UsageError(message, "unusable_folder", path=str(folder), reason=reason) from None
        else:
            return folder


def newest(name: str, workload: str, checkpoints: str | None = None) -> Path | None:
    """Return the newest run of this name and workload, or None.

    `checkpoints` is the required location of its checkpoints, or None for any location.
    """
    from oddlot.history.run_folder import RunFolder

    for number in sorted(numbers(name), reverse=True):
        run = RunFolder(RUNS / f"{name}-{number}", checkpoints)
        is_there = run.given_checkpoints in {"", run.begun_checkpoints}
        if run.is_begun and is_run_of(run.about, workload) and is_there:
            return run.path
    return None


def no_run(name: str) -> UsageError:
    """Return the error for a workload without runs."""
    message = (
        f"there is no run {RUNS}/{name}-N to resume: name its folder with --out, or use "
        "--resume auto to start one"
    )
    return UsageError(message, "no_run", path=f"{RUNS}/{name}-N")
