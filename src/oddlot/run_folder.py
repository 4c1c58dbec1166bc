"""The folder of a run: what lies where, and who may write there."""

import json
import shutil
from pathlib import Path
from typing import Any

from oddlot.core.errors import CheckpointError, UsageError

LOG = "records.jsonl"
SETTINGS = "run.json"
SUMMARY = "summary.json"
MODEL = "model.safetensors"
CHECKPOINTS = "checkpoints"


class RunFolder:
    """`records.jsonl`, `run.json`, `summary.json`, `model.safetensors` and `checkpoints/` of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.log = self.path / LOG
        self.model = self.path / MODEL
        self.checkpoints = self.path / CHECKPOINTS

    def claim(self, resume: bool, force: bool) -> None:
        """Make the folder, or take over the run in it. UsageError where that would overwrite something."""
        used = self.path.is_dir() and any(self.path.iterdir())
        is_run = (self.path / SETTINGS).exists()
        if resume and not is_run:
            raise CheckpointError(f"there is no run to resume in {self.path}: start it without resume")
        if used and not (resume or force):
            raise UsageError(
                f"{self.path} is not empty: resume=True (--resume) goes on with the run in it, "
                "force=True (--force) throws it away"
            )
        if used and force and not resume:
            if not is_run:
                raise UsageError(f"{self.path} holds no run, so it is not thrown away: choose another folder")
            self._clear()
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the run's folder {self.path}: {error.strerror}") from None

    def write(self, name: str, plain: dict[str, Any]) -> None:
        """Write a small JSON file."""
        (self.path / name).write_text(json.dumps(plain, indent=2) + "\n")

    def check_settings(self, now: dict[str, Any]) -> None:
        """CheckpointError showing every setting in which the run in the folder differs."""
        saved = json.loads((self.path / SETTINGS).read_text())
        different = [key for key in {**saved, **now} if saved.get(key) != now.get(key)]
        if different:
            lines = "".join(
                f"\n  {key}: {saved.get(key)} in the run, {now.get(key)} now" for key in different
            )
            raise CheckpointError(
                f"{self.path} is the run of another job:{lines}\nUse the same settings, or another folder"
            )

    def _clear(self) -> None:
        for name in (LOG, SETTINGS, SUMMARY, MODEL):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints, ignore_errors=True)
