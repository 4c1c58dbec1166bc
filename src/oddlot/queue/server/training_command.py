"""Commands of jobs: which of them are `oddlot train`, and what the queue adds to them."""

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from oddlot.core.support.errors import OddlotError

if TYPE_CHECKING:
    from oddlot.config.job_file import JobFile

PYTHON = re.compile(r"python[0-9.]*(\.exe)?")
MAX_NAME = 60


def train_arguments(command: Sequence[str]) -> int | None:
    """Return the index of the first argument after `oddlot train`, or None for another command."""
    parts = list(command[:4])
    if len(parts) > 1 and PurePath(parts[0]).name == "oddlot" and parts[1] == "train":
        return 2
    if PYTHON.fullmatch(PurePath(parts[0]).name) and parts[1:] == ["-m", "oddlot", "train"]:
        return 4
    return None


def resuming_command(command: Sequence[str], folder: str) -> list[str]:
    """Return the command with `--resume auto` and a run folder, if it is `oddlot train`. Given options are kept.

    The command then continues its run when it is started again.
    """
    first = train_arguments(command)
    given = [flag for flag in ("--resume", "--force", "--out", "--help") if _has(command, flag)]
    if first is None or "--help" in given or "--force" in given:
        return list(command)
    added = [] if "--resume" in given else ["--resume", "auto"]
    file = _read_job_file(command)
    if "--out" not in given and "--resume" not in given and not (file and file.out):
        added += ["--out", folder]
    return [*command, *added]


def job_name(command: Sequence[str]) -> str:
    """Return a name for a job from its command: the program, and the words before the first option."""
    first = train_arguments(command)
    words = ["train", *command[first:]] if first is not None else [PurePath(command[0]).name, *command[1:]]
    plain = list[str]()
    for word in words:
        if word.startswith("-") and len(plain) > 0:
            break
        plain.append(PurePath(word).name if "/" in word else word)
    name = " ".join("".join(one if one.isprintable() else " " for one in word) for word in plain)
    return name[:MAX_NAME]


def planned_seconds(command: Sequence[str]) -> float | None:
    """Return the planner's estimate in the job file of an `oddlot train` command, or None without one."""
    file = _read_job_file(command)
    if file is None:
        return None
    from oddlot.config.plan_file import plan_in

    try:
        plan = plan_in(file)
    except (OddlotError, OSError):
        return None
    return plan.prediction.seconds[1] if plan is not None else None


def _read_job_file(command: Sequence[str]) -> "JobFile | None":
    """Return the job file of a command, or None. `oddlot train` reports errors in the file."""
    first = train_arguments(command)
    path = next((one for one in command[first:] if one.endswith(".toml") and not one.startswith("-")), None)
    if first is None or path is None:
        return None
    from oddlot.config.job_file import JobFile

    try:
        return JobFile.read(path, ())
    except (OddlotError, OSError):
        return None


def _has(command: Sequence[str], flag: str) -> bool:
    return any(one == flag or one.startswith(f"{flag}=") for one in command)
