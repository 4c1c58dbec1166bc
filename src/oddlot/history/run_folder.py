"""The folder of a run: what lies where, and who may write there."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oddlot.checkpoint.atomic_files import check_name, told_where, write_model
from oddlot.checkpoint.disk import make_folder, read_file, replace_file
from oddlot.checkpoint.storage import LOG_PARTS, Storage, unreadable
from oddlot.core.errors import CheckpointError, UsageError
from oddlot.core.masked_urls import masked, passwords
from oddlot.core.serialization import DAMAGED
from oddlot.history.lock import LOCK, hold
from oddlot.history.log import has_records
from oddlot.history.run_settings import (
    SETTINGS,
    WHERE_SAID,
    check_format,
    check_same,
    no_run,
    not_empty,
    parsed,
)

if TYPE_CHECKING:
    from torch import nn

LOG = "records.jsonl"
ABOUT = "about"
ON = "on"
"""where the run was begun: not part of what a continuation must have in common"""
RUN_ID = "run_id"
"""the same in run.json and in its copy beside the checkpoints: by this a run knows a place as its own"""
EFFECTIVE_BATCH = "effective_batch"
"""what one step uses, for people: another number of workers may go on with the run"""
SUMMARY = "summary.json"
MODEL = "model.safetensors"
CHECKPOINTS = "checkpoints"
FILES = (MODEL, SUMMARY, LOG, CHECKPOINTS)
"""what a run writes, the most wanted first"""


class RunFolder:
    """`records.jsonl`, `run.json`, `summary.json`, `model.safetensors`, `checkpoints/` and `lock` of one run.

    The `checkpoints` may be elsewhere, at a path or a URL; the log and run.json lie there too then, so that another
    machine can go on.
    """

    def __init__(
        self, path: str | os.PathLike[str], checkpoints: str | os.PathLike[str] | None = None
    ) -> None:
        check_name(os.fspath(path), "out")
        self.path = Path(path)
        self.log = self.path / LOG
        self.model = self.path / MODEL
        self._checkpoints = os.fspath(checkpoints) if checkpoints is not None else ""
        if self._checkpoints and "://" not in self._checkpoints:
            check_name(self._checkpoints, "checkpoints")
            # It will be looked for from elsewhere.
            self._checkpoints = str(Path(self._checkpoints).expanduser().absolute())
        self.forced = False

    @contextmanager
    def claimed(self, resume: bool, force: bool) -> Iterator[None]:
        """Make the folder, or take over the run in it, and hold its lock while inside.

        UsageError where that would overwrite something, or another process holds the run.
        """
        self.forced = force
        with ExitStack() as closing:
            try:
                if resume:
                    self.fetch()
                self._check(resume, force)
                make_folder(self.path)
                self._lock(self.path, closing)
                self._check(resume, force)  # another process may have begun a run meanwhile
            except OSError as error:
                told, reason = f"cannot use {self.path} as the run's folder: {error.strerror}", error.strerror
                raise UsageError(told, "unusable_folder", path=str(self.path), reason=reason) from None
            self._lock_place(closing, resume)
            yield

    @property
    def checkpoints(self) -> str:
        """The path or URL where the checkpoints are: as given, or else as the run in the folder has it."""
        return self._checkpoints or self._begun_checkpoints

    @property
    def _begun_checkpoints(self) -> str:
        """Where the run in the folder has them."""
        begun = None
        with suppress(CheckpointError):
            begun = self._saved().get(CHECKPOINTS)
        return begun if isinstance(begun, str) else str(self.path / CHECKPOINTS)

    @property
    def _place(self) -> str:
        """The same, as it may be shown."""
        return masked(self.checkpoints)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the checkpoints are outside the folder."""
        return self.checkpoints != str(self.path / CHECKPOINTS)

    @property
    def storage(self) -> Storage:
        """Where the checkpoints are."""
        return Storage(self.checkpoints)

    @property
    def written(self) -> list[str]:
        """What there is of the run, the most wanted first, and where its checkpoints are if elsewhere."""
        names = [name for name in FILES if (self.path / name).exists()]
        return [*names, f"{CHECKPOINTS} in {self._place}"] if self.is_elsewhere else names

    def begin(self, settings: dict[str, Any]) -> None:
        """Note what a run is, as `settings()` will tell it."""
        settings = settings | {RUN_ID: self._run_id or secrets.token_hex(16)}
        if not self.is_elsewhere:
            self.write(SETTINGS, settings)
            make_folder(self.path / CHECKPOINTS)
            return
        try:
            if SETTINGS not in self.storage.names():
                self.storage.write(SETTINGS, [masked(json.dumps(settings, indent=2)).encode()])
                self.storage.sync()
        except OSError as error:
            raise self._unusable_place(error) from None
        self.write(SETTINGS, settings | {CHECKPOINTS: self.checkpoints})

    @property
    def _run_id(self) -> str:
        """That of the run in the folder; empty where it has none."""
        with suppress(CheckpointError):
            found = self._saved().get(RUN_ID)
            return found if isinstance(found, str) else ""
        return ""

    def fetch(self) -> None:
        """Bring what another machine has left where the checkpoints are into this folder, if no run is in it.

        CheckpointError: no whole checkpoint is there.
        """
        if self.is_begun or not self._checkpoints:
            return
        from oddlot.checkpoint.format import log_of, newest

        with ExitStack() as closing:
            self._lock_place(closing, resume=True)  # or else what was fetched would lie here for nothing
            log = log_of(newest(self.storage, with_log=True))
            settings = self._fetched_settings()
            with told_where(self.path):
                make_folder(self.path)
                self._lock(self.path, closing)
                if not self.is_begun:  # another process may have fetched it meanwhile
                    replace_file(self.log, log)
                    self.write(SETTINGS, settings | {CHECKPOINTS: self.checkpoints})

    def _fetched_settings(self) -> dict[str, Any]:
        """run.json, as it is where the checkpoints are. CheckpointError: it cannot be read, or is damaged."""
        path = self.storage.path(SETTINGS)
        try:
            return parsed(self.storage.read(SETTINGS))
        except OSError as error:
            raise unreadable(path, error) from error
        except DAMAGED:
            told = f"{path} is damaged: restore it from a copy"
            raise CheckpointError(told, "damaged_file", path=path) from None

    def write(self, name: str, plain: dict[str, Any]) -> None:
        """Write a small JSON file, for its owner alone if it has a password."""
        text = json.dumps(plain, indent=2) + "\n"
        with told_where(self.path / name):
            replace_file(self.path / name, text.encode(), private=bool(passwords(text)))

    def write_model(self, model: "nn.Module") -> None:
        """Write the model's parameters and buffers."""
        with told_where(self.model):
            write_model(model, self.model)

    def remove_if_unused(self) -> None:
        """Remove a folder in which nothing but a lock is left."""
        with suppress(OSError):
            if [path.name for path in self.path.iterdir()] in ([], [LOCK]):
                (self.path / LOCK).unlink(missing_ok=True)
                self.path.rmdir()

    @property
    def begun_in_vain(self) -> bool:
        """It ended before its first checkpoint was whole. CheckpointError: the checkpoints cannot be read."""
        from oddlot.checkpoint.format import MANIFEST

        if self.model.exists() or self._has_learned or has_records(self.log):
            return False
        names = self.checkpoint_names()
        try:
            return not any(MANIFEST in self.storage.names(name) for name in names)
        except OSError as error:
            raise unreadable(self._place, error) from error

    @property
    def _has_learned(self) -> bool:
        """Whether its summary, if there is one, tells of versions, or cannot be read."""
        try:
            return bool(json.loads(read_file(self.path / SUMMARY))["versions"])
        except FileNotFoundError:
            return False
        except (OSError, *DAMAGED):
            return True

    def reopen(self) -> None:
        """The run goes on: what was its end is not."""
        (self.path / SUMMARY).unlink(missing_ok=True)

    def forget_model(self) -> None:
        """The model of an earlier end is not the run's any more: there is a newer checkpoint."""
        self.model.unlink(missing_ok=True)

    def begin_anew(self) -> None:
        """What was begun in vain begins again, with its checkpoints where they were to be."""
        self._checkpoints = self._begun_checkpoints
        self.forced = True

    @property
    def about(self) -> dict[str, Any]:
        """What the run in the folder was begun with, as its starter noted it; empty where there is none."""
        saved = self.settings().get(ABOUT) if self.is_begun else {}
        return saved if isinstance(saved, dict) else {}

    def check_settings(self, now: dict[str, Any]) -> None:
        """CheckpointError showing every setting in which the run in the folder differs."""
        saved = self.settings()
        for free in (ABOUT, ON, CHECKPOINTS, RUN_ID, EFFECTIVE_BATCH):
            saved.pop(free, None)
        if not saved.keys() >= now.keys() - WHERE_SAID:
            raise self._no_settings("damaged")
        check_same(self.path, saved, now)

    def settings(self) -> dict[str, Any]:
        """run.json, without passwords: what the run was begun with. CheckpointError: it is not there, or damaged."""
        saved = self._saved()
        return saved | {CHECKPOINTS: masked(str(saved[CHECKPOINTS]))} if CHECKPOINTS in saved else saved

    def _saved(self) -> dict[str, Any]:
        """All that run.json says."""
        if not self.is_begun:
            raise no_run(self.path)
        if (self.path / LOG_PARTS).is_dir() and not self.log.exists():
            raise CheckpointError(
                f"{self.path} has the checkpoints of a run, and is not its folder. Bring the run to another folder: "
                f"out=DIR, resume=True, checkpoints={self.path} (--out DIR --resume --checkpoints {self.path})",
                "folder_of_checkpoints",
                path=str(self.path),
            )
        try:
            saved = parsed(read_file(self.path / SETTINGS))
        except (OSError, *DAMAGED) as error:
            raise self._no_settings(
                "missing" if isinstance(error, FileNotFoundError) else "damaged"
            ) from None
        check_format(self.path / SETTINGS, saved)
        return saved

    def _no_settings(self, state: str) -> CheckpointError:
        path = str(self.path / SETTINGS)
        told = f"{path} is {state}: restore it from a copy, or begin anew in another folder"
        return CheckpointError(told, f"{state}_file", path=path)

    @property
    def is_begun(self) -> bool:
        """A run has begun here, whatever became of it."""
        return (self.path / SETTINGS).exists() or (self.log.exists() and (self.path / CHECKPOINTS).exists())

    def _lock_place(self, closing: ExitStack, resume: bool) -> None:
        """Hold the place of the checkpoints too, if it is a folder: object stores have no lock that all have."""
        place = self.storage.local("") if self.is_elsewhere else None
        if place is None or (resume and not place.is_dir()):  # which will be told
            return
        try:
            make_folder(place)
            self._lock(place, closing)
        except OSError as error:
            raise self._unusable_place(error) from None

    def _unusable_place(self, error: Exception) -> UsageError:
        told = f"cannot use {self._place} as the place for checkpoints ({error}): name another one"
        return UsageError(told, "unusable_folder", "checkpoints", path=self._place, reason=str(error))

    def _lock(self, folder: Path, closing: ExitStack) -> None:
        """Hold the lock until `closing` is closed or this process ends, however it does."""
        hold(folder, closing)

    def _check(self, resume: bool, force: bool) -> None:
        is_run = self.is_begun
        used = self.path.exists() and any(path.name != LOCK for path in self.path.iterdir())
        if resume and not is_run:
            told = f"there is no run to resume in {self.path}: start it without resume=True (--resume)"
            raise CheckpointError(told, "no_run", path=str(self.path))
        if used and not (resume or force):
            raise not_empty(str(self.path))
        if used and force and not is_run:
            told = f"{self.path} holds no run, so it is not thrown away: choose another folder"
            raise UsageError(told, "not_a_run", path=str(self.path))
        if used:
            self._check_own_place()
        if resume:
            self._check_other_place()
        else:
            self._check_place(force)

    def make_room(self) -> None:
        """Throw away the run that is here, if that may be: `force` was said, or it was begun in vain.

        UsageError: there is one, and it may not.
        """
        from oddlot.checkpoint.format import PART

        if not self.forced:
            self._check_place(force=False)  # another one may have begun meanwhile
            return
        try:
            parts = (f"{LOG_PARTS}/{name}" for name in self.storage.names(LOG_PARTS) if PART.fullmatch(name))
            for name in (*parts, *self.checkpoint_names(), SETTINGS):
                self.storage.remove(name)
        except OSError as error:
            raise self._unusable_place(error) from error
        shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)
        for name in (LOG, SUMMARY, MODEL, SETTINGS):  # the settings last: without them it is no run
            (self.path / name).unlink(missing_ok=True)

    def checkpoint_names(self) -> list[str]:
        """The folders of all checkpoints, whole or not. CheckpointError: their place cannot be read."""
        from oddlot.checkpoint.format import saved

        try:
            return saved(self.storage)
        except OSError as error:
            path, reason = self._place, str(error)
            told = f"{path} cannot be read ({reason}): see to it that it can be reached, then try again"
            raise CheckpointError(told, "unreadable_file", path=path, reason=reason) from error

    def _check_own_place(self) -> None:
        """UsageError: only files in the folder lead to these checkpoints, which may be those of another run.

        Checkpoints are removed as newer ones come, or by `force`.
        """
        link = self.path / CHECKPOINTS
        if self._checkpoints or not (self.is_elsewhere or link.is_symlink()):
            return
        try:
            names = [] if link.is_symlink() else self.storage.names()
            known = parsed(self.storage.read(SETTINGS)).get(RUN_ID) if SETTINGS in names else ""
        except (OSError, *DAMAGED) as error:
            raise self._unusable_place(error) from None
        if link.is_symlink() or (set(names) - {LOCK} and not (known and known == self._run_id)):
            told = (
                f"the checkpoints of {self.path} are said to be in {self._place}, which is not known to be this run's. "
                "If it is, name it: checkpoints=... (--checkpoints)"
            )
            raise UsageError(told, "not_this_run", "checkpoints", path=str(self.path), place=self._place)

    def _check_other_place(self) -> None:
        """UsageError: the run's checkpoints are elsewhere than it is said now."""
        begun = self._begun_checkpoints
        if self._checkpoints not in {"", begun} and not self.checkpoint_names():
            raise UsageError(
                f"{self._place} holds no checkpoint, those of {self.path} are in {masked(begun)}: leave checkpoints "
                "out, or copy them there first",
                "checkpoints_elsewhere",
                "checkpoints",
                given=self._place,
                begun=masked(begun),
            )

    def _check_place(self, force: bool) -> None:
        """UsageError: where the checkpoints are to be, something else is."""
        if not self._checkpoints:
            return
        if Path(self._checkpoints).resolve() == self.path.resolve():
            told = f"{self.path} is the run's own folder: leave checkpoints out, or name another place"
            raise UsageError(told, "checkpoints_in_run", "checkpoints", path=str(self.path))
        try:
            names = [name for name in self.storage.names() if name != LOCK]
        except OSError as error:
            path, reason = self._place, str(error)
            told = (
                f"{path} cannot be read ({reason}): see to it that it can be reached, or name another place"
            )
            raise UsageError(told, "unreadable_file", path=path, reason=reason) from None
        if names and not force:
            raise not_empty(self._place)
        if names and SETTINGS not in names:
            told = (
                f"{self._place} holds no run, so it is not thrown away: choose another place for checkpoints"
            )
            raise UsageError(told, "not_a_run", path=self._place)
