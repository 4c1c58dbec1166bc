"""The run folder: its files, and the location of its checkpoints."""

import json
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oddlot.checkpoint.local_storage import (
    check_name,
    make_folder,
    naming_path,
    read_file,
    replace_file,
    write_model,
)
from oddlot.checkpoint.storage import BEST, LOG_PARTS, Storage, unreadable
from oddlot.core.records import HUB
from oddlot.core.support.errors import CheckpointError, UsageError
from oddlot.core.support.serialization import DAMAGED
from oddlot.core.support.text import masked, passwords
from oddlot.core.tasks import NodeId
from oddlot.history.folder_lock import LOCK
from oddlot.history.log import has_header
from oddlot.history.run_settings import (
    ALWAYS_SAVED,
    SETTINGS,
    STAGES,
    check_format,
    check_same,
    no_run,
    parsed,
    provenance,
)
from oddlot.history.segments import SEGMENTS, STAGE, Segment, segments_of

if TYPE_CHECKING:
    from torch import nn

LOG = "records.jsonl"
HOSTS = "hosts"
"""Machines of the hosts: machines of the peers on a mesh, otherwise `ONLY_HUB`. A resumed run may have others."""
ONLY_HUB = "hub"
ABOUT = "about"
ENGINE = "engine"
RUN = "run"
"""The engine and the run settings that the run was started with. A resumed run may have others."""
RUN_ID = "run_id"
"""Identifier in run.json and in its copy next to the checkpoints."""
STARTED = "started"
"""Provenance of the run: date, host, command and versions of its first start."""
STATE_DICT = "state_dict"
"""Differences between the state dict of the model and the tensors in checkpoints."""
EFFECTIVE_BATCH = "effective_batch"
"""Description of the effective batch. It may change when the run is resumed."""
SUMMARY = "summary.json"
MODEL = "model.safetensors"
CHECKPOINTS = "checkpoints"
PEERS = "peers"
"""Folder with the logs of peers, in a run on a mesh."""
WORKER_LOGS = "workers"
"""Folder with the output of workers that failed on other machines."""
FILES = (MODEL, BEST, SUMMARY, LOG, PEERS, CHECKPOINTS)
"""Files of a run, the most important first."""


class RunFolder:
    """`records.jsonl`, `run.json`, `summary.json`, `model.safetensors`, `best/`, `checkpoints/` and `lock` of a run.

    `checkpoints` may be at another path or a URL. The log and run.json are then copied there, and another machine can
    resume the run.
    """

    def __init__(
        self, path: str | os.PathLike[str], checkpoints: str | os.PathLike[str] | None = None
    ) -> None:
        check_name(os.fspath(path), "out")
        self.path = Path(path).expanduser()
        self.log = self.path / LOG
        self.model = self.path / MODEL
        self.given_checkpoints = os.fspath(checkpoints) if checkpoints is not None else ""
        if self.given_checkpoints and "://" not in self.given_checkpoints:
            check_name(self.given_checkpoints, "checkpoints")
            # run.json has this path, so it must not depend on the current folder.
            self.given_checkpoints = str(Path(self.given_checkpoints).expanduser().absolute())
        self.forced = False
        """Whether a run in the folder may be overwritten."""
        self.lock: int | None = None
        """Descriptor of the lock, while this process holds it."""

    @property
    def is_mesh(self) -> bool:
        """Whether the hosts of the run are the peers of a mesh."""
        with suppress(CheckpointError):
            return bool(self._saved().get(HOSTS, ONLY_HUB) != ONLY_HUB)
        return False

    def log_of(self, host: NodeId) -> Path:
        """Return the path of the log of a host."""
        return self.log if host == HUB else self.path / PEERS / f"{host}.jsonl"

    def logs(self) -> dict[NodeId, Path]:
        """Return the paths of the logs of all hosts, without logs of peers that have no complete line."""
        return self.peer_logs() if self.is_mesh else {HUB: self.log}

    def peer_logs(self) -> dict[NodeId, Path]:
        """Return the logs of all peers that have a complete line."""
        paths = sorted((self.path / PEERS).glob("*.jsonl"))
        return {path.name.removesuffix(".jsonl"): path for path in paths if has_header(path)}

    @property
    def checkpoints(self) -> str:
        """Return the given path or URL of the checkpoints, or by default the location in run.json."""
        return self.given_checkpoints or self.begun_checkpoints

    @property
    def begun_checkpoints(self) -> str:
        """Return the path or URL of the checkpoints from run.json."""
        begun = None
        with suppress(CheckpointError):
            begun = self._saved().get(CHECKPOINTS)
        return begun if isinstance(begun, str) else str(self.path / CHECKPOINTS)

    @property
    def place(self) -> str:
        """Return the path or URL of the checkpoints without passwords, for messages."""
        return masked(self.checkpoints)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the checkpoints are outside the folder."""
        return self.checkpoints != str(self.path / CHECKPOINTS)

    @property
    def storage(self) -> Storage:
        """Return the storage of the checkpoints."""
        return Storage(self.checkpoints)

    @property
    def written(self) -> list[str]:
        """Return the existing files of the run, and the location of its checkpoints if it is outside the folder."""
        names = [name for name in FILES if (self.path / name).exists()]
        return [*names, f"{CHECKPOINTS} in {self.place}"] if self.is_elsewhere else names

    def begin(self, settings: dict[str, Any]) -> None:
        """Write run.json with these settings, the id of the run and its provenance."""
        settings = settings | {RUN_ID: self.run_id or secrets.token_hex(16)}
        started = self._started if self.is_begun else provenance(settings.get(ABOUT, {}))
        settings |= {STARTED: started} if started else {}
        if not self.is_elsewhere:
            self.write(SETTINGS, settings)
            make_folder(self.path / CHECKPOINTS)
            return
        try:
            if self._stored_segments() != settings.get(SEGMENTS):
                self.storage.write(SETTINGS, [masked(json.dumps(settings, indent=2)).encode()])
                self.storage.sync()
        except OSError as error:
            raise self.unusable_place(error) from None
        self.write(SETTINGS, settings | {CHECKPOINTS: self.checkpoints})

    def _stored_segments(self) -> Any:
        """Return the segments in the run.json next to the checkpoints, or an empty list if it does not exist."""
        if SETTINGS not in self.storage.names():
            return []
        try:
            return parsed(self.storage.read(SETTINGS)).get(SEGMENTS)
        except DAMAGED:
            return []

    @property
    def run_id(self) -> str:
        """Return the identifier of the run in the folder, or an empty string."""
        with suppress(CheckpointError):
            found = self._saved().get(RUN_ID)
            return found if isinstance(found, str) else ""
        return ""

    @property
    def _started(self) -> Any:
        """Return the provenance of the run in the folder, or None."""
        with suppress(CheckpointError):
            return self._saved().get(STARTED)
        return None

    def write(self, name: str, plain: dict[str, Any]) -> None:
        """Write a small JSON file. Only its owner can read it if it has a password."""
        text = json.dumps(plain, indent=2) + "\n"
        with naming_path(self.path / name):
            replace_file(self.path / name, text.encode(), private=bool(passwords(text)))

    def write_model(self, model: "nn.Module") -> None:
        """Write the model's parameters and buffers."""
        with naming_path(self.model):
            write_model(model, self.model)

    def remove_fetched(self) -> None:
        """Remove the fetched logs and the fetched run.json."""
        shutil.rmtree(self.path / PEERS, ignore_errors=True)
        for name in (LOG, SETTINGS):
            (self.path / name).unlink(missing_ok=True)

    def remove_if_unused(self) -> None:
        """Remove the folder if it has nothing but a lock."""
        remove_if_unused(self.path)

    @property
    def is_unsaved(self) -> bool:
        """Whether neither a model nor a checkpoint was saved. Raise CheckpointError if checkpoints cannot be read."""
        return not (self.model.exists() or self.has_whole_checkpoint)

    @property
    def has_whole_checkpoint(self) -> bool:
        """Whether a checkpoint was finished. Raise CheckpointError if checkpoints cannot be read."""
        from oddlot.checkpoint.format import MANIFEST

        names = self.checkpoint_names()
        try:
            return any(MANIFEST in self.storage.names(name) for name in names)
        except OSError as error:
            raise unreadable(self.place, error) from error

    @property
    def has_learned(self) -> bool:
        """Whether the summary exists and has versions, or cannot be read."""
        try:
            return bool(json.loads(read_file(self.path / SUMMARY))["versions"])
        except FileNotFoundError:
            return False
        except (OSError, *DAMAGED):
            return True

    def reopen(self) -> None:
        """Remove the summary of a run that is resumed."""
        (self.path / SUMMARY).unlink(missing_ok=True)

    def forget_model(self) -> None:
        """Remove the model of an earlier end, because there is a newer checkpoint."""
        self.model.unlink(missing_ok=True)

    def restart(self) -> None:
        """Prepare to start the run again: it may be overwritten, and its checkpoints keep their location."""
        self.given_checkpoints = self.begun_checkpoints
        self.forced = True

    @property
    def about(self) -> dict[str, Any]:
        """Return the `about` of the run in the folder, or an empty mapping."""
        saved = self.settings().get(ABOUT) if self.is_begun else {}
        return saved if isinstance(saved, dict) else {}

    def check_settings(self, now: dict[str, Any], new_segment: bool | None = None) -> None:
        """Raise CheckpointError with every setting that differs from the run in the folder.

        With `new_segment`, the settings of a segment may differ. None: the run cannot have several segments.
        """
        saved = self.settings()
        if saved.get(HOSTS, ONLY_HUB) != ONLY_HUB:
            new_segment = None
        for free in (
            HOSTS,
            ABOUT,
            ENGINE,
            RUN,
            CHECKPOINTS,
            RUN_ID,
            STARTED,
            STATE_DICT,
            EFFECTIVE_BATCH,
            SEGMENTS,
        ):
            saved.pop(free, None)
        if not saved.keys() >= ALWAYS_SAVED:
            raise self._no_settings("damaged")
        check_same(self.path, saved, now, new_segment)

    def segments(self, count: int) -> list[Segment]:
        """Return the first `count` segments in run.json. Raise CheckpointError if it has fewer."""
        try:
            segments = segments_of(self.settings())
        except DAMAGED:
            raise self._no_settings("damaged") from None
        if len(segments) < count:
            raise self._no_settings("damaged")
        return segments[:count]

    @property
    def following_stage(self) -> str:
        """Return the name of the stage after the newest segment in run.json, or an empty string."""
        with suppress(CheckpointError, IndexError, *DAMAGED):
            stages = list(self.about[STAGES])
            return str(stages[stages.index(segments_of(self.settings())[-1][STAGE]) + 1])
        return ""

    def settings(self) -> dict[str, Any]:
        """Return run.json without passwords. Raise CheckpointError if it is missing or damaged."""
        saved = self._saved()
        return saved | {CHECKPOINTS: masked(str(saved[CHECKPOINTS]))} if CHECKPOINTS in saved else saved

    def _saved(self) -> dict[str, Any]:
        """Return the contents of run.json."""
        if not self.is_begun:
            raise no_run(self.path)
        if (self.path / LOG_PARTS).is_dir() and not self.log.exists():
            raise CheckpointError(
                f"{self.path} has the checkpoints of a run, but is not its run folder. Resume the run in a new folder: "
                f'out=DIR, resume="latest", checkpoints={self.path} '
                f"(--out DIR --resume latest --checkpoints {self.path})",
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
        message = f"{path} is {state}: restore it from a copy, or start again in another folder"
        return CheckpointError(message, f"{state}_file", path=path)

    @property
    def is_begun(self) -> bool:
        """Whether a run was started here."""
        return (self.path / SETTINGS).exists() or (self.log.exists() and (self.path / CHECKPOINTS).exists())

    def unusable_place(self, error: Exception) -> UsageError:
        """Return the error for an unusable location of the checkpoints."""
        message = f"cannot use {self.place} as the location of checkpoints ({error}): use another one"
        return UsageError(message, "unusable_folder", "checkpoints", path=self.place, reason=str(error))

    def checkpoint_names(self) -> list[str]:
        """Return the names of all checkpoints, complete or not. Raise CheckpointError if they cannot be read."""
        from oddlot.checkpoint.format import saved

        try:
            return saved(self.storage)
        except OSError as error:
            path, reason = self.place, str(error)
            message = f"{path} cannot be read ({reason}): make it reachable, then try again"
            raise CheckpointError(message, "unreadable_file", path=path, reason=reason) from error


def remove_if_unused(path: Path) -> None:
    """Remove a folder if it has nothing but a lock."""
    with suppress(OSError):
        if [each.name for each in path.iterdir()] in ([], [LOCK]):
            (path / LOCK).unlink(missing_ok=True)
            path.rmdir()
