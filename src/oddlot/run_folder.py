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

from safetensors import SafetensorError

from oddlot.core.errors import CheckpointError, JobError, UsageError

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
MODEL = "model.safetensors"
CHECKPOINTS = "checkpoints"
FILES = (MODEL, SUMMARY, LOG, CHECKPOINTS)
"""what a run writes, the most wanted first"""


class RunFolder:
    """`records.jsonl`, `run.json`, `summary.json`, `model.safetensors`, `checkpoints/` and `lock` of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.log = self.path / LOG
        self.model = self.path / MODEL
        self.checkpoints = self.path / CHECKPOINTS

    @contextmanager
    def claimed(self, resume: bool, force: bool) -> Iterator[None]:
        """Make the folder, or take over the run in it, and hold its lock while inside.

        UsageError where that would overwrite something, or another process holds the run.
        """
        with ExitStack() as closing:
            try:
                self._check(resume, force)
                self.path.mkdir(parents=True, exist_ok=True)
                self._lock(closing)
                self._check(resume, force)  # another process may have begun a run meanwhile
            except OSError as error:
                raise UsageError(f"cannot use {self.path} as the run's folder: {error.strerror}") from None
            yield

    def write(self, name: str, plain: dict[str, Any]) -> None:
        """Write a small JSON file."""
        with _writing(self.path / name) as path:
            draft = path.with_name(f".{name}.partial")
            try:
                draft.write_text(json.dumps(plain, indent=2) + "\n")
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)

    def write_model(self, model: "nn.Module") -> None:
        """Write the model's parameters and buffers."""
        from safetensors.torch import save_model  # PyTorch comes with it

        with _writing(self.model) as path:
            save_model(model, str(path))
            path.chmod((self.path / SETTINGS).stat().st_mode)  # it is nobody's secret

    def remove_if_unused(self) -> None:
        """Remove a folder in which nothing but a lock is left."""
        with suppress(OSError):
            if [path.name for path in self.path.iterdir()] in ([], [LOCK]):
                (self.path / LOCK).unlink(missing_ok=True)
                self.path.rmdir()

    def reopen(self) -> None:
        """The run goes on: what was its end is not."""
        (self.path / SUMMARY).unlink(missing_ok=True)

    @property
    def about(self) -> dict[str, Any]:
        """What the run in the folder was begun with, as its starter noted it; empty where there is none."""
        saved = self.settings().get(ABOUT) if self.is_begun else {}
        return saved if isinstance(saved, dict) else {}

    def check_settings(self, now: dict[str, Any]) -> None:
        """CheckpointError showing every setting in which the run in the folder differs."""
        saved = self.settings()
        for free in (ABOUT, ON):
            saved.pop(free, None)
        if not saved.keys() >= now.keys():
            raise self._no_settings("damaged")
        different = [key for key in {**saved, **now} if saved.get(key) != now.get(key)]
        if different:
            lines = "".join(
                f"\n  {key}: {_told(saved.get(key))} in the run, {_told(now.get(key))} now"
                for key in different
            )
            raise CheckpointError(
                f"{self.path} is the run of another job:{lines}\nUse the same settings, or another folder"
            )

    def settings(self) -> dict[str, Any]:
        """run.json, which tells what the run was begun with. CheckpointError: it is not there, or damaged."""
        if not self.is_begun:
            raise CheckpointError(f"there is no run in {self.path}")
        try:
            saved = dict(json.loads((self.path / SETTINGS).read_text()))
            version = saved["format"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise self._no_settings(
                "missing" if isinstance(error, FileNotFoundError) else "damaged"
            ) from None
        if version != FORMAT:
            raise CheckpointError(
                f"{self.path / SETTINGS} has format {version}, this version of oddlot reads {FORMAT}"
            )
        return saved

    def _no_settings(self, state: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path / SETTINGS} is {state}: restore it from a copy, or begin anew with force=True (--force)"
        )

    @property
    def is_begun(self) -> bool:
        """A run has begun here, whatever became of it."""
        return (self.path / SETTINGS).exists() or (self.log.exists() and self.checkpoints.exists())

    def _lock(self, closing: ExitStack) -> None:
        """Hold the lock until `closing` is closed or this process ends, however it does."""
        file = closing.enter_context((self.path / LOCK).open("a+", encoding="utf-8"))
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UsageError(
                f"{self.path} is in use by {file.read().strip() or 'another process'}: wait for its end, or end it"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()

    def _check(self, resume: bool, force: bool) -> None:
        is_run = self.is_begun
        used = self.path.exists() and any(path.name != LOCK for path in self.path.iterdir())
        if resume and not is_run:
            raise CheckpointError(f"there is no run to resume in {self.path}: start it without resume")
        if used and not (resume or force):
            raise UsageError(
                f"{self.path} is not empty: resume=True (--resume) goes on with the run in it, "
                "force=True (--force) throws it away"
            )
        if used and force and not is_run:
            raise UsageError(f"{self.path} holds no run, so it is not thrown away: choose another folder")

    def clear(self) -> None:
        """Throw away what another run has left: nothing, unless `force` was said."""
        if self.checkpoints.exists():
            shutil.rmtree(self.checkpoints)
        for name in (LOG, SUMMARY, MODEL, SETTINGS):  # the settings last: without them it is no run
            (self.path / name).unlink(missing_ok=True)


def _told(value: Any) -> str:
    """A setting; a text that looks like a number is told apart from it."""
    return repr(value) if isinstance(value, str) and value[:1].isdigit() else str(value)


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    try:
        yield path
    except (OSError, SafetensorError) as error:
        raise JobError(f"cannot write {path} ({error}): make room, then resume the run") from error
