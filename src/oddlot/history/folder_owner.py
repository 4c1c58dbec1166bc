"""Claiming a run folder and the location of its checkpoints for one process: checks, locks and removal."""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from oddlot.checkpoint.local_storage import make_folder
from oddlot.checkpoint.storage import BEST, LOG_PARTS
from oddlot.core.support.errors import CheckpointError, UsageError
from oddlot.core.support.serialization import DAMAGED
from oddlot.core.support.text import masked
from oddlot.history.folder_lock import LOCK, check_not_in_use, hold
from oddlot.history.run_folder import (
    CHECKPOINTS,
    LOG,
    MODEL,
    PEERS,
    RUN_ID,
    SUMMARY,
    WORKER_LOGS,
    RunFolder,
    remove_if_unused,
)
from oddlot.history.run_settings import SETTINGS, not_empty, parsed

DRAFT = re.compile(rf"\.({re.escape(SETTINGS)}|{re.escape(LOG)})\.\d+")
"""Matches unfinished files of `replace_file`. They remain if the process is killed."""


@contextmanager
def claim(folder: RunFolder, resume: bool, force: bool) -> Iterator[None]:
    """Create the folder, or take over the run in it, and hold its lock inside this context.

    Raise UsageError if other files would be overwritten, or if another process holds the run.
    """
    folder.forced = force
    with ExitStack() as closing:
        with unusable_folder(folder):
            try:
                _check(folder, resume, force)
            except UsageError:
                _check_not_in_use(folder)  # if it is in use, neither `resume` nor `force` helps
                raise
            was_there = folder.path.exists()
            make_folder(folder.path)
            folder.lock = hold(folder.path, closing)
            closing.push(partial(_remove_unused, folder.path, was_there))
            # Another process may have started a run before this one had the lock.
            _check(folder, resume, force)
        lock_place(folder, closing, resume)
        yield


def _check_not_in_use(folder: RunFolder) -> None:
    """Raise UsageError if another process holds the run folder, or the location of its checkpoints."""
    place = folder.storage.local("")
    for path in (folder.path, *([] if place is None else [place])):
        check_not_in_use(path)


def _remove_unused(path: Path, was_there: bool, kind: type[BaseException] | None, *_: object) -> None:
    """Remove a folder that was created for a run if the run failed before it wrote anything."""
    if kind is not None and not was_there:
        remove_if_unused(path)


@contextmanager
def unusable_folder(folder: RunFolder) -> Iterator[None]:
    """Raise UsageError if the code inside cannot use the run folder."""
    try:
        yield
    except OSError as error:
        message, reason = f"cannot use {folder.path} as the run folder: {error.strerror}", error.strerror
        raise UsageError(message, "unusable_folder", path=str(folder.path), reason=reason) from None


def make_room(folder: RunFolder) -> None:
    """Remove the run in the folder and its checkpoints.

    Raise UsageError if the run may not be overwritten.
    """
    from oddlot.checkpoint.best_writer import is_best_file
    from oddlot.checkpoint.format import PART

    if not folder.forced:
        _check_place(folder, force=False)  # another run may have started there
        return
    try:
        parts = folder.storage.names(LOG_PARTS)
        ours = [name for name in parts if PART.fullmatch(name.removesuffix(".partial"))]
        log = [LOG_PARTS] if ours == parts else [f"{LOG_PARTS}/{name}" for name in ours]
        weights = [f"{BEST}/{name}" for name in folder.storage.names(BEST) if is_best_file(name)]
        # Settings last, because they identify the run.
        for name in (*log, *weights, *folder.checkpoint_names(), SETTINGS):
            folder.storage.remove(name)
    except OSError as error:
        raise folder.unusable_place(error) from error
    for name in (BEST, CHECKPOINTS, PEERS):
        shutil.rmtree(folder.path / name, ignore_errors=True)
    for name in (LOG, SUMMARY, MODEL, SETTINGS):  # settings last, because they mark a run folder
        (folder.path / name).unlink(missing_ok=True)


def lock_place(folder: RunFolder, closing: ExitStack, resume: bool) -> None:
    """Lock the location of the checkpoints if it is a separate folder. Other storage is not locked."""
    place = folder.storage.local("") if folder.is_elsewhere else None
    if place is None or (resume and not place.is_dir()):  # a later check raises the error
        return
    was_there = place.exists()
    try:
        make_folder(place)
        hold(place, closing)
        closing.push(partial(_remove_unused, place, was_there))
    except OSError as error:
        raise folder.unusable_place(error) from None


def users_files(folder: RunFolder) -> list[Path]:
    """Return the files in the folder, except leftovers of a process that was killed before its run started."""
    found = folder.path.iterdir() if folder.path.exists() else ()
    return [path for path in found if not _is_leftover(path, folder.given_checkpoints)]


def _is_leftover(path: Path, checkpoints: str) -> bool:
    if path.name == LOCK or DRAFT.fullmatch(path.name):
        return True
    if path.is_dir() and path.name == WORKER_LOGS:
        return all(log.suffix == ".log" for log in path.iterdir())
    return path.is_dir() and Path(checkpoints).is_relative_to(path.absolute())


def not_a_run(folder: RunFolder, of_checkpoints: bool = False) -> UsageError:
    """Return the error for a run folder or a location of checkpoints with files that are not from a run."""
    if of_checkpoints:
        message = f"{folder.place} has no run and is not overwritten: use another location for checkpoints"
        return UsageError(message, "not_a_run", path=folder.place)
    message = f"{folder.path} is not a run folder and is not overwritten: use another folder"
    return UsageError(message, "not_a_run", path=str(folder.path))


def place_names(folder: RunFolder) -> list[str]:
    """Return the names at the location of the checkpoints, except the lock and an unfinished run.json.

    Raise UsageError if they cannot be read.
    """
    try:
        return [name for name in folder.storage.names() if name not in {LOCK, f"{SETTINGS}.partial"}]
    except OSError as error:
        path, reason = folder.place, str(error)
        message = f"{path} cannot be read ({reason}): make it reachable, or use another location"
        raise UsageError(message, "unreadable_file", path=path, reason=reason) from None


def _check(folder: RunFolder, resume: bool, force: bool) -> None:
    """Raise UsageError or CheckpointError if the folder cannot be used in this way."""
    is_run = folder.is_begun
    used = is_run or bool(users_files(folder))
    if resume and not is_run:
        message = (
            f'there is no run to resume in {folder.path}. Use resume="auto" (--resume auto) to start one'
        )
        raise CheckpointError(message, "no_run", path=str(folder.path))
    if used and not (resume or force):
        raise not_empty(str(folder.path), is_run)
    if used and force and not is_run:
        raise not_a_run(folder)
    if used:
        _check_own_place(folder)
    if resume:
        _check_other_place(folder)
    else:
        _check_place(folder, force)


def _check_own_place(folder: RunFolder) -> None:
    """Raise UsageError if the checkpoints may belong to another run.

    This is the case if the folder refers to a location that was not passed and does not have the id of the run. The run
    would remove checkpoints there.
    """
    link = folder.path / CHECKPOINTS
    if folder.given_checkpoints or not (folder.is_elsewhere or link.is_symlink()):
        return
    try:
        names = [] if link.is_symlink() else folder.storage.names()
        known = parsed(folder.storage.read(SETTINGS)).get(RUN_ID) if SETTINGS in names else ""
    except (OSError, *DAMAGED) as error:
        raise folder.unusable_place(error) from None
    if link.is_symlink() or (set(names) - {LOCK} and not (known and known == folder.run_id)):
        message = (
            f"{folder.path} names {folder.place} as the location of its checkpoints, but that may belong to another "
            "run. If it is right, pass it: checkpoints=... (--checkpoints)"
        )
        raise UsageError(message, "not_this_run", "checkpoints", path=str(folder.path), place=folder.place)


def _check_other_place(folder: RunFolder) -> None:
    """Raise UsageError if the run's checkpoints are not at the given location."""
    begun = folder.begun_checkpoints
    if folder.given_checkpoints not in {"", begun} and not folder.checkpoint_names():
        raise UsageError(
            f"{folder.place} has no checkpoints: the run's checkpoints are in {masked(begun)}. Omit `checkpoints`, or "
            "copy them to the new location first",
            "checkpoints_in_other_location",
            "checkpoints",
            given=folder.place,
            begun=masked(begun),
        )


def _check_place(folder: RunFolder, force: bool) -> None:
    """Raise UsageError if the location of the checkpoints is in use."""
    if not folder.given_checkpoints:
        return
    if Path(folder.given_checkpoints).resolve() == folder.path.resolve():
        message = f"{folder.path} is the run folder itself: leave `checkpoints` out, or use another location"
        raise UsageError(message, "checkpoints_in_run", "checkpoints", path=str(folder.path))
    names = place_names(folder)
    if names and not force:
        raise not_empty(folder.place, SETTINGS in names, "checkpoints")
    if names and SETTINGS not in names:
        raise not_a_run(folder, of_checkpoints=True)
