"""The folder of a run: what lies where, and who may write there."""

import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oddlot.core.errors import CheckpointError, UsageError
from oddlot.train.files import replace_file, told_where
from oddlot.train.storage import LOG_PARTS, Storage, unreadable

if TYPE_CHECKING:
    from torch import nn

FORMAT = 1
LOG = "records.jsonl"
SETTINGS = "run.json"
ABOUT = "about"
ON = "on"
"""where the run was begun: not part of what a continuation must have in common"""
SUMMARY = "summary.json"
LOCK = "lock"
WHERE_SAID = {"schedule", "clip_norm", "keep_optimizer", "maths"}
"""settings that are in run.json only where they were said"""
MODEL = "model.safetensors"
CHECKPOINTS = "checkpoints"
DAMAGED = (ValueError, TypeError, KeyError, RecursionError, OverflowError)
FILES = (MODEL, SUMMARY, LOG, CHECKPOINTS)
"""what a run writes, the most wanted first"""
MOST_NAMED = 10
"""runs of a folder"""


class RunFolder:
    """`records.jsonl`, `run.json`, `summary.json`, `model.safetensors`, `checkpoints/` and `lock` of one run.

    The `checkpoints` may be elsewhere, at a path or a URL; the log and run.json lie there too then, so that another
    machine can go on.
    """

    def __init__(
        self, path: str | os.PathLike[str], checkpoints: str | os.PathLike[str] | None = None
    ) -> None:
        self.path = Path(path)
        self.log = self.path / LOG
        self.model = self.path / MODEL
        self._checkpoints = os.fspath(checkpoints) if checkpoints is not None else ""
        if self._checkpoints and "://" not in self._checkpoints:
            self._checkpoints = str(
                Path(self._checkpoints).expanduser().absolute()
            )  # it will be looked for from elsewhere
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
                self.path.mkdir(parents=True, exist_ok=True)
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
            begun = self.settings().get(CHECKPOINTS)
        return begun if isinstance(begun, str) else str(self.path / CHECKPOINTS)

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
        return [*names, f"{CHECKPOINTS} in {self.checkpoints}"] if self.is_elsewhere else names

    def begin(self, settings: dict[str, Any]) -> None:
        """Note what a run is, as `settings()` will tell it."""
        if self.is_elsewhere:
            settings = settings | {CHECKPOINTS: self.checkpoints}
            try:
                if SETTINGS not in self.storage.names():
                    self.storage.write(SETTINGS, [json.dumps(settings, indent=2).encode()])
            except OSError as error:
                raise self._unusable_place(error) from None
        self.write(SETTINGS, settings)

    def fetch(self) -> None:
        """Bring what another machine has left where the checkpoints are into this folder, if no run is in it.

        CheckpointError: no whole checkpoint is there.
        """
        if self.is_begun or not self._checkpoints:
            return
        from oddlot.train.checkpoint import log_of, newest  # PyTorch comes with it

        with ExitStack() as closing:
            self._lock_place(closing, resume=True)  # or else what was fetched would lie here for nothing
            log = log_of(newest(self.storage, with_log=True))
            settings = self._fetched_settings()
            with told_where(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                self._lock(self.path, closing)
                if not self.is_begun:  # another process may have fetched it meanwhile
                    replace_file(self.log, log)
                    replace_file(self.path / SETTINGS, settings)

    def _fetched_settings(self) -> bytes:
        """run.json, as it is where the checkpoints are. CheckpointError: it cannot be read, or is damaged."""
        path = self.storage.path(SETTINGS)
        try:
            settings = self.storage.read(SETTINGS)
            _parsed(settings)
        except OSError as error:
            raise unreadable(path, error) from error
        except DAMAGED:
            told = f"{path} is damaged: restore it from a copy"
            raise CheckpointError(told, "damaged_file", path=path) from None
        return settings

    def write(self, name: str, plain: dict[str, Any]) -> None:
        """Write a small JSON file."""
        with told_where(self.path / name):
            replace_file(self.path / name, json.dumps(plain, indent=2).encode() + b"\n")

    def write_model(self, model: "nn.Module") -> None:
        """Write the model's parameters and buffers."""
        from safetensors.torch import save_model  # PyTorch comes with it

        with told_where(self.model):
            save_model(model, str(self.model))
            self.model.chmod((self.path / SETTINGS).stat().st_mode)  # it is nobody's secret

    def remove_if_unused(self) -> None:
        """Remove a folder in which nothing but a lock is left."""
        with suppress(OSError):
            if [path.name for path in self.path.iterdir()] in ([], [LOCK]):
                (self.path / LOCK).unlink(missing_ok=True)
                self.path.rmdir()

    @property
    def begun_in_vain(self) -> bool:
        """It ended before its first checkpoint was whole. CheckpointError: the checkpoints cannot be read."""
        from oddlot.train.checkpoint import MANIFEST  # PyTorch comes with it

        if self.model.exists() or self._has_learned or self._has_records:
            return False
        names = self.checkpoint_names()
        try:
            return not any(MANIFEST in self.storage.names(name) for name in names)
        except OSError as error:
            raise unreadable(self.checkpoints, error) from error

    @property
    def _has_records(self) -> bool:
        """Whether the log, if there is one, has a whole line behind its first."""
        with suppress(FileNotFoundError), self.log.open("rb") as file:
            return file.readline().endswith(b"\n") and file.readline().endswith(b"\n")
        return False

    @property
    def _has_learned(self) -> bool:
        """Whether its summary, if there is one, tells of versions, or cannot be read."""
        try:
            return bool(json.loads((self.path / SUMMARY).read_text())["versions"])
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
        for free in (ABOUT, ON, CHECKPOINTS):
            saved.pop(free, None)
        if not saved.keys() >= now.keys() - WHERE_SAID:
            raise self._no_settings("damaged")
        both = {key: (saved.get(key), now.get(key)) for key in {**saved, **now}}
        different = {key: values for key, values in both.items() if values[0] != values[1]}
        if different:
            lines = "".join(
                f"\n  {key}: {_told(was)} in the run, {_told(is_now)} now"
                for key, (was, is_now) in different.items()
            )
            told = f"{self.path} is the run of another job:{lines}\nUse the same settings, or another folder"
            raise CheckpointError(told, "other_job", path=str(self.path), different=different)

    def settings(self) -> dict[str, Any]:
        """run.json, which tells what the run was begun with. CheckpointError: it is not there, or damaged."""
        if not self.is_begun:
            inside = sorted(str(path.parent) for path in self.path.glob(f"*/{SETTINGS}"))[:MOST_NAMED]
            hint = f"; some are in folders of it: {', '.join(inside)}" if inside else ""
            told = f"there is no run in {self.path}{hint}"
            raise CheckpointError(told, "no_run", path=str(self.path), inside=inside)
        if (self.path / LOG_PARTS).is_dir() and not self.log.exists():
            raise CheckpointError(
                f"{self.path} has the checkpoints of a run, and is not its folder: resume with checkpoints={self.path} "
                f"and another folder (--checkpoints {self.path} --out DIR --resume), which brings the run there",
                "folder_of_checkpoints",
                path=str(self.path),
            )
        try:
            saved = _parsed((self.path / SETTINGS).read_bytes())
        except (OSError, *DAMAGED) as error:
            raise self._no_settings(
                "missing" if isinstance(error, FileNotFoundError) else "damaged"
            ) from None
        if saved["format"] != FORMAT:
            path, given = str(self.path / SETTINGS), saved["format"]
            told = f"{path} has format {given}, this version of oddlot reads {FORMAT}"
            raise CheckpointError(told, "other_format", path=path, format=given)
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
            place.mkdir(parents=True, exist_ok=True)
            self._lock(place, closing)
        except OSError as error:
            raise self._unusable_place(error) from None

    def _unusable_place(self, error: OSError) -> UsageError:
        told = f"cannot use {self.checkpoints} as the place for checkpoints ({error}): name another one"
        return UsageError(told, "unusable_folder", "checkpoints", path=self.checkpoints, reason=str(error))

    def _lock(self, folder: Path, closing: ExitStack) -> None:
        """Hold the lock until `closing` is closed or this process ends, however it does."""
        file = closing.enter_context((folder / LOCK).open("a+b", buffering=0))
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().decode(errors="replace").strip() or "another process"
            told = f"{folder} is in use by {holder}: wait for its end, or end it"
            raise UsageError(told, "folder_in_use", path=str(folder), holder=holder) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n".encode())

    def _check(self, resume: bool, force: bool) -> None:
        is_run = self.is_begun
        used = self.path.exists() and any(path.name != LOCK for path in self.path.iterdir())
        if resume and not is_run:
            told = f"there is no run to resume in {self.path}: start it without resume"
            raise CheckpointError(told, "no_run", path=str(self.path))
        if used and not (resume or force):
            raise _not_empty(str(self.path))
        if used and force and not is_run:
            told = f"{self.path} holds no run, so it is not thrown away: choose another folder"
            raise UsageError(told, "not_a_run", path=str(self.path))
        if resume:
            self._check_other_place()
        else:
            self._check_place(force)

    def make_room(self) -> None:
        """Throw away the run that is here, if that may be: `force` was said, or it was begun in vain.

        UsageError: there is one, and it may not.
        """
        from oddlot.train.saver import PART  # PyTorch comes with it

        if not self.forced:
            self._check_place(force=False)  # another one may have begun meanwhile
            return
        with told_where(self.checkpoints):
            parts = (f"{LOG_PARTS}/{name}" for name in self.storage.names(LOG_PARTS) if PART.fullmatch(name))
            for name in (*parts, *self.checkpoint_names(), SETTINGS):
                self.storage.remove(name)
            shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)
        for name in (LOG, SUMMARY, MODEL, SETTINGS):  # the settings last: without them it is no run
            (self.path / name).unlink(missing_ok=True)

    def checkpoint_names(self) -> list[str]:
        """The folders of all checkpoints, whole or not. CheckpointError: their place cannot be read."""
        from oddlot.train.checkpoint import saved  # PyTorch comes with it

        try:
            return saved(self.storage)
        except OSError as error:
            path, reason = self.checkpoints, str(error)
            told = f"{path} cannot be read ({reason}): see to it that it can be reached, then try again"
            raise CheckpointError(told, "unreadable_file", path=path, reason=reason) from error

    def _check_other_place(self) -> None:
        """UsageError: the run's checkpoints are elsewhere than it is said now."""
        begun = self._begun_checkpoints
        if self._checkpoints not in {"", begun} and not self.checkpoint_names():
            raise UsageError(
                f"{self._checkpoints} holds no checkpoint, those of {self.path} are in {begun}: leave checkpoints out, "
                "or copy them there first",
                "checkpoints_elsewhere",
                "checkpoints",
                given=self._checkpoints,
                begun=begun,
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
            path, reason = self._checkpoints, str(error)
            told = (
                f"{path} cannot be read ({reason}): see to it that it can be reached, or name another place"
            )
            raise UsageError(told, "unreadable_file", path=path, reason=reason) from None
        if names and not force:
            raise _not_empty(self._checkpoints)
        if names and SETTINGS not in names:
            told = f"{self._checkpoints} holds no run, so it is not thrown away: choose another place for checkpoints"
            raise UsageError(told, "not_a_run", path=self._checkpoints)


def _not_empty(path: str) -> UsageError:
    return UsageError(
        f"{path} is not empty: resume=True (--resume) goes on with the run in it, "
        "force=True (--force) throws it away",
        "folder_not_empty",
        path=path,
    )


def _parsed(settings: bytes) -> dict[str, Any]:
    """What run.json says. One of `DAMAGED`: it is no run.json."""
    saved = dict(json.loads(settings))
    if saved["format"] == FORMAT and not (
        isinstance(saved["job"], str) and isinstance(saved["strategy"], str)
    ):
        raise ValueError
    return saved


def _told(value: Any) -> str:
    """A setting; a text that looks like a number is told apart from it."""
    return repr(value) if isinstance(value, str) and value[:1].isdigit() else str(value)
