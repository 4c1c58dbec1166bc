"""Claiming of a run folder, and of the location of its checkpoints, for one process."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from oddlot.checkpoint.atomic_files import told_where
from oddlot.checkpoint.disk import make_folder, replace_file
from oddlot.checkpoint.storage import LOG_PARTS, unreadable
from oddlot.core.errors import CheckpointError, UsageError
from oddlot.core.masked_urls import masked
from oddlot.core.serialization import DAMAGED
from oddlot.history.lock import LOCK, hold
from oddlot.history.run_folder import CHECKPOINTS, LOG, MODEL, RUN_ID, SUMMARY, RunFolder
from oddlot.history.run_settings import SETTINGS, not_empty, parsed


@contextmanager
def claim(folder: RunFolder, resume: bool, force: bool) -> Iterator[None]:
    """Make the folder, or take over the run in it, and hold its lock while inside.

    Raise UsageError if that would overwrite something, or if another process holds the run.
    """
    folder.forced = force
    with ExitStack() as closing:
        try:
            if resume:
                fetch(folder)
            _check(folder, resume, force)
            make_folder(folder.path)
            hold(folder.path, closing)
            _check(folder, resume, force)  # another process may have begun a run meanwhile
        except OSError as error:
            told, reason = f"cannot use {folder.path} as the run folder: {error.strerror}", error.strerror
            raise UsageError(told, "unusable_folder", path=str(folder.path), reason=reason) from None
        _lock_place(folder, closing, resume)
        yield


def fetch(folder: RunFolder) -> None:
    """Copy the log and run.json from the location of the checkpoints into the folder, if no run is in it.

    Raise CheckpointError if there is no complete checkpoint.
    """
    if folder.is_begun or not folder.given_checkpoints:
        return
    from oddlot.checkpoint.format import log_of, newest

    with ExitStack() as closing:
        _lock_place(folder, closing, resume=True)  # before anything is fetched
        log = log_of(newest(folder.storage, with_log=True))
        settings = _fetched_settings(folder)
        with told_where(folder.path):
            make_folder(folder.path)
            hold(folder.path, closing)
            if not folder.is_begun:  # another process may have fetched it meanwhile
                replace_file(folder.log, log)
                folder.write(SETTINGS, settings | {CHECKPOINTS: folder.checkpoints})


def _fetched_settings(folder: RunFolder) -> dict[str, Any]:
    """Return the run.json next to the checkpoints. Raise CheckpointError if it cannot be read."""
    path = folder.storage.path(SETTINGS)
    try:
        return parsed(folder.storage.read(SETTINGS))
    except OSError as error:
        raise unreadable(path, error) from error
    except DAMAGED:
        told = f"{path} is damaged: restore it from a copy"
        raise CheckpointError(told, "damaged_file", path=path) from None


def make_room(folder: RunFolder) -> None:
    """Remove the run in the folder, with its checkpoints, if it may be overwritten.

    Raise UsageError if it may not.
    """
    from oddlot.checkpoint.format import PART

    if not folder.forced:
        _check_place(folder, force=False)  # another one may have begun meanwhile
        return
    try:
        parts = (f"{LOG_PARTS}/{name}" for name in folder.storage.names(LOG_PARTS) if PART.fullmatch(name))
        for name in (*parts, *folder.checkpoint_names(), SETTINGS):
            folder.storage.remove(name)
    except OSError as error:
        raise folder.unusable_place(error) from error
    shutil.rmtree(folder.path / CHECKPOINTS, ignore_errors=True)
    for name in (LOG, SUMMARY, MODEL, SETTINGS):  # the settings last: without them it is no run
        (folder.path / name).unlink(missing_ok=True)


def _lock_place(folder: RunFolder, closing: ExitStack, resume: bool) -> None:
    """Lock the place of the checkpoints too, if it is a folder: not all object stores have locks."""
    place = folder.storage.local("") if folder.is_elsewhere else None
    if place is None or (resume and not place.is_dir()):  # which will be told
        return
    try:
        make_folder(place)
        hold(place, closing)
    except OSError as error:
        raise folder.unusable_place(error) from None


def _check(folder: RunFolder, resume: bool, force: bool) -> None:
    """Raise UsageError or CheckpointError if the folder cannot be used in this way."""
    is_run = folder.is_begun
    used = folder.path.exists() and any(path.name != LOCK for path in folder.path.iterdir())
    if resume and not is_run:
        told = f"there is no run to resume in {folder.path}. Start one without resume=True (--resume)"
        raise CheckpointError(told, "no_run", path=str(folder.path))
    if used and not (resume or force):
        raise not_empty(str(folder.path))
    if used and force and not is_run:
        told = f"{folder.path} is not a run folder and is not overwritten: use another folder"
        raise UsageError(told, "not_a_run", path=str(folder.path))
    if used:
        _check_own_place(folder)
    if resume:
        _check_other_place(folder)
    else:
        _check_place(folder, force)


def _check_own_place(folder: RunFolder) -> None:
    """Raise UsageError if only files in the folder name these checkpoints, which may be those of another run.

    Checkpoints are removed as newer ones come, or by `force`.
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
        told = (
            f"{folder.path} names {folder.place} as the location of its checkpoints, but that may belong to another "
            "run. If it is right, pass it: checkpoints=... (--checkpoints)"
        )
        raise UsageError(told, "not_this_run", "checkpoints", path=str(folder.path), place=folder.place)


def _check_other_place(folder: RunFolder) -> None:
    """Raise UsageError if the run's checkpoints are in another location than the given one."""
    begun = folder.begun_checkpoints
    if folder.given_checkpoints not in {"", begun} and not folder.checkpoint_names():
        raise UsageError(
            f"{folder.place} has no checkpoints; those of {folder.path} are in {masked(begun)}: leave "
            "`checkpoints` out, or copy them there first",
            "checkpoints_elsewhere",
            "checkpoints",
            given=folder.place,
            begun=masked(begun),
        )


def _check_place(folder: RunFolder, force: bool) -> None:
    """Raise UsageError if the location of the checkpoints is in use."""
    if not folder.given_checkpoints:
        return
    if Path(folder.given_checkpoints).resolve() == folder.path.resolve():
        told = f"{folder.path} is the run folder itself: leave `checkpoints` out, or use another location"
        raise UsageError(told, "checkpoints_in_run", "checkpoints", path=str(folder.path))
    try:
        names = [name for name in folder.storage.names() if name != LOCK]
    except OSError as error:
        path, reason = folder.place, str(error)
        told = f"{path} cannot be read ({reason}): make it reachable, or use another location"
        raise UsageError(told, "unreadable_file", path=path, reason=reason) from None
    if names and not force:
        raise not_empty(folder.place)
    if names and SETTINGS not in names:
        told = f"{folder.place} has no run and is not overwritten: use another place for checkpoints"
        raise UsageError(told, "not_a_run", path=folder.place)
