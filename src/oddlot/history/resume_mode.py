"""The decision whether to resume a run or to start a new run: `resume="latest"`, `resume="auto"` or neither."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from oddlot.checkpoint.format import logs_of, newest
from oddlot.checkpoint.local_storage import make_folder, naming_path, replace_file
from oddlot.checkpoint.storage import unreadable
from oddlot.core.records import HUB
from oddlot.core.support.errors import CheckpointError
from oddlot.core.support.serialization import DAMAGED
from oddlot.history.folder_lock import hold
from oddlot.history.folder_owner import lock_place, not_a_run, place_names, unusable_folder, users_files
from oddlot.history.log import read_header
from oddlot.history.run_folder import CHECKPOINTS, PEERS, RunFolder
from oddlot.history.run_settings import AUTO, SETTINGS, Resume, parsed


def resumes(folder: RunFolder, mode: Resume | None) -> bool:
    """Return whether to resume the run in the folder, or at the location of its checkpoints.

    A run that exists only at that location is fetched into the folder. Raise UsageError or CheckpointError if it cannot
    be fetched, or if `auto` would start a new run in a folder with other files.
    """
    if mode is None:
        return False
    with unusable_folder(folder):
        if not folder.is_begun:
            if mode == AUTO and not _is_begun_elsewhere(folder):
                return False
            fetch(folder, mode)
    return True


def _is_begun_elsewhere(folder: RunFolder) -> bool:
    """Return whether the location of the checkpoints has a run. Raise UsageError if there are other files."""
    names = place_names(folder) if folder.given_checkpoints else []
    is_begun = bool(names) and (SETTINGS in names or folder.has_whole_checkpoint)
    used = users_files(folder)
    if used and not (is_begun and used in ([folder.log], [folder.path / PEERS]) and _are_logs(used[0])):
        raise not_a_run(folder)
    if names and not is_begun:
        raise not_a_run(folder, of_checkpoints=True)
    return is_begun


def _are_logs(path: Path) -> bool:
    """Return whether this is the log of a hub or a folder with logs of peers, as after an interrupted fetch."""
    logs = path.glob("*.jsonl") if path.is_dir() else [path]
    try:
        return all(map(read_header, logs))
    except CheckpointError:
        return False


def fetch(folder: RunFolder, mode: Resume) -> None:
    """Copy run.json and the logs from the location of the checkpoints, if the folder has no run.

    Raise CheckpointError if there is no complete checkpoint. With `auto`, a run that was killed before its first
    checkpoint has only a run.json, and starts again.
    """
    if folder.is_begun or not folder.given_checkpoints:
        return
    with ExitStack() as closing:
        lock_place(folder, closing, resume=True)  # before anything is fetched
        starts_again = mode == AUTO and not folder.has_whole_checkpoint
        logs = {} if starts_again else logs_of(newest(folder.storage, with_log=True))
        settings = _fetched_settings(folder)
        with naming_path(folder.path):
            make_folder(folder.path)
            hold(folder.path, closing)
            if not folder.is_begun:  # another process may have fetched it before the lock
                if logs.keys() - {HUB}:
                    make_folder(folder.path / PEERS)
                for host, log in logs.items():
                    replace_file(folder.log_of(host), log)
                folder.write(SETTINGS, settings | {CHECKPOINTS: folder.checkpoints})


def _fetched_settings(folder: RunFolder) -> dict[str, Any]:
    """Return the run.json next to the checkpoints. Raise CheckpointError if it cannot be read."""
    path = folder.storage.path(SETTINGS)
    try:
        return parsed(folder.storage.read(SETTINGS))
    except OSError as error:
        raise unreadable(path, error) from error
    except DAMAGED:
        message = f"{path} is damaged: restore it from a copy"
        raise CheckpointError(message, "damaged_file", path=path) from None
