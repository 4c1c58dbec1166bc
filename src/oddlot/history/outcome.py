"""What a run itself has said at its end, held against its log."""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

from oddlot.checkpoint.disk import read_file
from oddlot.core.errors import CheckpointError
from oddlot.core.serialization import DAMAGED
from oddlot.history.run_folder import SUMMARY, RunFolder

FAILED = "failed: "
"""how the ending of a run begins that has failed"""
INTERRUPTED = "interrupted"
"""how a run ends that Ctrl-C or SIGTERM has stopped, as in `oddlot.run.result`"""
MAX_LINES = 3
COUNTED = ("versions", "updates", "samples_merged")


def in_short(error: Exception) -> str:
    """What a run's summary says of a failure: its lines or, of a long one (a traceback), the first and the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines if len(lines) <= MAX_LINES else [lines[0], lines[-1]])


def read_ending(run: RunFolder) -> dict[str, Any]:
    """The run's summary; empty while it has not ended. CheckpointError: it is damaged."""
    path = run.path / SUMMARY
    if not path.exists():
        return {}
    try:
        ending = dict(json.loads(read_file(path)))
        kinds = {"ended": str, "ended_version": int, "records": int}
        if any(type(ending[key]) is not kind for key, kind in kinds.items()):
            raise ValueError
        if not isfinite(ending.get("seconds", 0.0)):
            raise ValueError
    except (OSError, *DAMAGED):
        raise CheckpointError(
            f"{path} is damaged: restore it from a copy, or remove it, and the log alone counts",
            "damaged_file",
            path=str(path),
        ) from None
    return ending


def check_whole(run: RunFolder, ending: dict[str, Any], records: int) -> None:
    """CheckpointError: the log, of so many records, was cut after the run had ended."""
    if ending and ending["records"] != records:
        raise CheckpointError(
            f"{run.log} has {records:,} of the {ending['records']:,} records of the run: restore the file from a copy",
            "log_not_whole",
            path=str(run.log),
            records=records,
            wanted=ending["records"],
        )


def check_agreed(run: RunFolder, ending: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
    """CheckpointError: the summary is not of the run whose figures the log has."""
    for name in COUNTED if ending else ():
        if ending.get(name) != figures[name]:
            raise CheckpointError(
                f"{run.path / SUMMARY} says {name} {ending.get(name)}, the log {figures[name]}: restore them from a "
                f"copy, or remove {SUMMARY}, and the log alone counts",
                "summary_differs",
                figure=name,
                given=ending.get(name),
                counted=figures[name],
            )
