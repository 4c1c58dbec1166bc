"""Reading of a run's summary, and its comparison with the log."""

import json
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

from oddlot.checkpoint.local_storage import read_file
from oddlot.core.records import HUB
from oddlot.core.support.errors import CheckpointError
from oddlot.core.support.serialization import DAMAGED, from_plain
from oddlot.core.tasks import NodeId
from oddlot.history.run_folder import SUMMARY, RunFolder

FAILED = "failed: "
"""Prefix of `ended` if the run failed."""
INTERRUPTED = "interrupted"
"""Value of `ended` if Ctrl-C or SIGTERM stopped the run."""
MAX_LINES = 3
PEER_RECORDS = "peer_records"
"""Key in the summary of a mesh: number of records in the log of each peer at the time of the summary."""
COUNTED = ("versions", "updates", "samples_merged")


def in_short(error: BaseException) -> str:
    """Return an error as one line. Of more than `MAX_LINES` lines, only the first and the last are kept."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines if len(lines) <= MAX_LINES else [lines[0], lines[-1]])


def read_ending(run: RunFolder) -> dict[str, Any]:
    """Return the run's summary; empty if the run has not ended. Raise CheckpointError if it is damaged."""
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
        if run.is_mesh:
            ending[PEER_RECORDS] = from_plain(dict[str, int], ending[PEER_RECORDS])
    except (OSError, *DAMAGED):
        raise CheckpointError(
            f"{path} is damaged: restore it from a copy, or remove it to use the log alone",
            "damaged_file",
            path=str(path),
        ) from None
    return ending


def complete_epochs(ending: Mapping[str, Any]) -> int:
    """Return the number of epochs that the run reported as complete."""
    goal = re.fullmatch(r"epochs(?:>=|<=|<)(\d+)", str(ending.get("ended")))
    return int(goal[1]) if goal else 0


def check_whole(run: RunFolder, ending: Mapping[str, Any], records: Mapping[NodeId, int]) -> None:
    """Raise CheckpointError if a log was truncated after the end of the run.

    `records` has the number of records by host. The peers of a mesh may write more records after the summary.
    """
    if not ending:
        return
    for host, wanted in ending.get(PEER_RECORDS, {HUB: ending["records"]}).items():
        found, path = records.get(host, 0), run.log_of(host)
        if found < wanted or (found > wanted and host == HUB):
            raise CheckpointError(
                f"{path} has {found:,} of the {wanted:,} records of the run: restore it from a copy",
                "incomplete_log",
                path=str(path),
                records=found,
                wanted=wanted,
            )


def check_agreed(run: RunFolder, ending: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
    """Raise CheckpointError if the summary does not match the log."""
    for name in COUNTED if ending else ():
        if ending.get(name) != figures[name]:
            raise CheckpointError(
                f"{run.path / SUMMARY} has {name} = {ending.get(name)}, but the log has {figures[name]}: restore them "
                f"from a copy, or remove {SUMMARY} to use the log alone",
                "summary_differs",
                figure=name,
                given=ending.get(name),
                counted=figures[name],
            )
