"""The settings of a run in run.json: provenance, comparison on resume, and how to resume the run."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from oddlot.core.support.errors import CheckpointError, InvalidValue, UsageError
from oddlot.core.support.text import masked
from oddlot.core.version import __version__
from oddlot.history.segments import SEGMENT_SETTINGS

GIVEN = "given"
"""Key in `about`: all arguments of the `oddlot` command."""
STAGES = "stages"
"""Key in `about`: names of all stages of a run."""
NOTEBOOK = "ipykernel_launcher"


def provenance(about: Mapping[str, Any]) -> dict[str, str]:
    """Return the date, the host, the command and the versions of the process that starts a run.

    For a script, only its name is included, because arguments and paths may be private.
    """
    import platform

    import torch

    given = about.get(GIVEN)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node().partition(".")[0],
        "command": masked(shlex.join(["oddlot", *map(str, given)])) if isinstance(given, list) else _script(),
        "oddlot": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def _script() -> str:
    """Return the command of a Python program, without its arguments."""
    script = Path(sys.argv[0]) if sys.argv else Path()
    if script.stem == NOTEBOOK:
        return "notebook"
    return shlex.join(["python", script.name]) if script.suffix == ".py" else "python"


FORMAT = 2
SETTINGS = "run.json"
MAX_NAMED = 10
"""Largest number of runs that an error lists."""
COMMAND = "command"
"""Key in `about`: arguments of the `oddlot` command that started the run."""
COMMANDS = ("train", "simulate")
Resume = Literal["latest", "auto"]
"""`latest` resumes a run. `auto` resumes the run or, without a run, starts a new one."""
LATEST: Resume = "latest"
AUTO: Resume = "auto"
MODES: dict[Resume, str] = {
    LATEST: "Continue the run; an error if there is none.",
    AUTO: "Continue the run, or start one if there is none.",
}
ALWAYS_SAVED = {
    "format", "job", "parameters", "samples", "batch_size", "optimizer", "strategy", "seed", "shards",
}  # fmt: skip
"""Keys of each run.json. Without one of them, the file is damaged."""


def parsed(settings: bytes) -> dict[str, Any]:
    """Return the contents of run.json. Raise one of `DAMAGED` if they are invalid."""
    saved = dict(json.loads(settings))
    if saved["format"] == FORMAT and not (
        isinstance(saved["job"], str) and isinstance(saved["strategy"], str)
    ):
        raise ValueError("no job, or no strategy")
    return saved


def resume_mode(given: object) -> Resume | None:
    """Return the resume mode. Raise InvalidValue if it is unknown."""
    for mode in (None, *MODES):
        if isinstance(given, str | None) and given == mode:
            return mode
    must = '"latest" (continues a run), "auto" (continues a run, or starts one if there is none) or None'
    raise InvalidValue("resume", given, must)


def segment_without_resume() -> UsageError:
    """Return the error for a new segment of a run that is not resumed."""
    message = 'new_segment=True (--new-segment) continues a run: pass resume="latest" (--resume latest) too'
    return UsageError(message, "missing_setting", "new_segment", name="resume")


def check_format(path: Path, saved: dict[str, Any]) -> None:
    """Raise CheckpointError if another version of oddlot wrote run.json."""
    if saved["format"] != FORMAT:
        given = saved["format"]
        message = f"{path} has format {given}, but this version of oddlot reads format {FORMAT}"
        raise CheckpointError(message, "other_format", path=str(path), format=given)


def check_same(
    folder: Path, saved: dict[str, Any], now: dict[str, Any], new_segment: bool | None = None
) -> None:
    """Raise CheckpointError with all settings that differ from the run in the folder.

    With `new_segment`, the settings of a segment may differ. None: the run cannot have several segments.
    """
    both = {key: (saved.get(key), now.get(key)) for key in {**saved, **now}}
    free = SEGMENT_SETTINGS if new_segment else ()
    different = {key: values for key, values in both.items() if values[0] != values[1] and key not in free}
    if different:
        advice = "To resume the run, use its settings. For other settings, start a run in another folder"
        if new_segment is not None and different.keys() <= {*SEGMENT_SETTINGS}:
            advice = (
                "To resume the run, use its settings. To continue it with these settings, pass new_segment=True "
                "(--new-segment)"
            )
        lines = "".join(
            f"\n  {key}: {_text(was)} in the run, {_text(is_now)} now"
            for key, (was, is_now) in different.items()
        )
        message = f"{folder} is the run of another job:{lines}\n{advice}"
        raise CheckpointError(message, "other_job", path=str(folder), different=different)


def engine_kind(saved: dict[str, Any]) -> str:
    """Return the kind of engine in run.json, such as `local`. Empty if it is missing."""
    engine = saved.get("engine")
    return str(engine.get("kind", "")) if isinstance(engine, dict) else ""


def resuming(arguments: Sequence[str], folder: str) -> str:
    """Return the command that resumes a run that was started with these arguments of `oddlot`."""
    return shlex.join(["oddlot", *arguments, "--resume", LATEST, "--out", folder])


def how_to_resume(about: dict[str, Any], folder: str) -> str:
    """Return the command or the Python call that resumes a run. `about` is from its run.json."""
    arguments = about.get(COMMAND)
    is_ours = isinstance(arguments, list) and all(isinstance(one, str) for one in arguments)
    if is_ours and arguments and arguments[0] in COMMANDS:
        return resuming(arguments, folder)
    return f'oddlot.fit(..., out={folder!r}, resume="{LATEST}")'


def no_run(path: Path) -> CheckpointError:
    """Return the error for a path that is not a run folder."""
    if path.is_file():
        beside = (path.parent / SETTINGS).exists()
        hint = f"use the run folder {path.parent}" if beside else "use a run folder"
        return CheckpointError(f"{path} is a file: {hint}", "not_a_folder", path=str(path))
    inside = sorted(str(each.parent) for each in path.glob(f"*/{SETTINGS}"))[:MAX_NAMED]
    hint = f"; its folders have runs: {', '.join(inside)}" if inside else ""
    message = f"there is no run in {path}{hint}" if path.exists() else f"the folder {path} does not exist"
    return CheckpointError(message, "no_run", path=str(path), inside=inside)


def not_empty(path: str, has_run: bool, setting: str = "out") -> UsageError:
    """Return the error for a folder that is not empty."""
    other = f"use another folder: {setting}=... (--{setting})"
    message = (
        f'{path} has a run already: resume="latest" (--resume latest) continues it, force=True (--force) overwrites '
        f"it. To keep it, {other}"
        if has_run
        else f"{path} is not empty, and its files are not those of a run: {other}"
    )
    return UsageError(message, "folder_not_empty", path=path, has_run=has_run)


def _text(value: Any) -> str:
    """Format a setting. Text that looks like a number is quoted."""
    if value is None:
        return "not set"
    return repr(value) if isinstance(value, str) and value[:1].isdigit() else str(value)
