"""run.json: what a run was begun with, read with care and compared."""

import json
from pathlib import Path
from typing import Any

from oddlot.core.errors import CheckpointError, UsageError

FORMAT = 1
WHERE_SAID = {"schedule", "clip_norm", "keep_optimizer", "maths"}
"""settings that are in run.json only where they were said"""


def parsed(settings: bytes) -> dict[str, Any]:
    """What run.json says. One of `DAMAGED`: it is no run.json."""
    saved = dict(json.loads(settings))
    if saved["format"] == FORMAT and not (
        isinstance(saved["job"], str) and isinstance(saved["strategy"], str)
    ):
        raise ValueError("no job, or no strategy")
    return saved


def check_format(path: Path, saved: dict[str, Any]) -> None:
    """CheckpointError: another version of oddlot has written it."""
    if saved["format"] != FORMAT:
        given = saved["format"]
        told = f"{path} has format {given}, this version of oddlot reads {FORMAT}"
        raise CheckpointError(told, "other_format", path=str(path), format=given)


def check_same(folder: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """CheckpointError showing every setting in which the run in the folder differs."""
    both = {key: (saved.get(key), now.get(key)) for key in {**saved, **now}}
    different = {key: values for key, values in both.items() if values[0] != values[1]}
    if different:
        lines = "".join(
            f"\n  {key}: {_told(was)} in the run, {_told(is_now)} now"
            for key, (was, is_now) in different.items()
        )
        told = f"{folder} is the run of another job:{lines}\nUse the same settings, or another folder"
        raise CheckpointError(told, "other_job", path=str(folder), different=different)


def not_empty(path: str) -> UsageError:
    """The folder is in use already."""
    return UsageError(
        f"{path} is not empty: resume=True (--resume) goes on with the run in it, "
        "force=True (--force) throws it away",
        "folder_not_empty",
        path=path,
    )


def _told(value: Any) -> str:
    """Format a setting. Text that looks like a number is quoted."""
    return repr(value) if isinstance(value, str) and value[:1].isdigit() else str(value)
