"""Files with the best weights of a run, written in a background thread.

`FOLDER/best/00000042-917.safetensors` has the weights of version 42. Its evaluation is record 917 of the log.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from math import inf
from threading import Lock, Thread
from typing import NamedTuple

from torch import Tensor

from oddlot.checkpoint.storage import BEST, Storage
from oddlot.checkpoint.tensor_files import tensor_file
from oddlot.core.support.errors import JobError

NAME = re.compile(r"([0-9]{8,19})-([0-9]{1,19})\.safetensors")


class BestFile(NamedTuple):
    """A file with the weights of a version that was the best when it was evaluated."""

    record: int
    """Number of the evaluation's record in the log, from 0."""
    version: int

    @property
    def name(self) -> str:
        """Return the name of the file in the storage."""
        return f"{BEST}/{self.version:08d}-{self.record}.safetensors"


class BestWeights(NamedTuple):
    """The content of such a file."""

    file: BestFile
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    checkpoints: Collection[int]
    """Numbers of records before the checkpoints that a run can be resumed from."""


def best_files(storage: Storage) -> list[BestFile]:
    """Return the files with best weights, the newest last. Raise OSError if the storage cannot be read."""
    found = filter(None, map(NAME.fullmatch, storage.names(BEST)))
    return sorted(BestFile(int(one[2]), int(one[1])) for one in found)


def remove_unfinished(storage: Storage) -> None:
    """Remove files that a killed process has not finished. Raise OSError if the storage cannot be changed."""
    for name in storage.names(BEST):
        if name.endswith(".partial") and is_best_file(name):
            storage.remove(f"{BEST}/{name}")


def is_best_file(name: str) -> bool:
    """Return whether a name in the folder `BEST` is a file of this module, complete or not."""
    return bool(NAME.fullmatch(name.removesuffix(".partial")))


def needed(files: Collection[BestFile], checkpoints: Collection[int]) -> set[BestFile]:
    """Return the newest file, and the newest file before each checkpoint. A resumed run may need them."""
    newest = max(files, default=None)
    before = (max((one for one in files if one.record < count), default=None) for count in checkpoints)
    return {one for one in (newest, *before) if one is not None}


class BestWriter:
    """Writes best weights into all of the storages, one at a time. Newer weights replace weights that still wait.

    A new file removes files that no resume can need. Errors of the storage are returned by `problems()`.
    """

    def __init__(self, storages: Sequence[Storage]) -> None:
        self.storages = storages
        self._lock = Lock()
        self._waiting: BestWeights | None = None
        self._writing: Future[None] | None = None
        """The thread's result. None while no thread runs."""
        self._problems: list[JobError] = []

    def save(self, best: BestWeights) -> None:
        """Write weights in the background. Do not change the tensors afterwards."""
        with self._lock:
            self._waiting = best
            if self._writing is not None:
                return
            self._writing = Future()
        # A daemon thread, so hanging storage does not keep the process from exiting.
        Thread(target=self._write_waiting, args=(self._writing,), name="best weights", daemon=True).start()

    def problems(self) -> list[JobError]:
        """Return the errors since the last call."""
        problems, self._problems = self._problems, []
        return problems

    def wait(self, seconds: float = inf) -> bool:
        """Wait at most `seconds` until all weights are written. Return False on a timeout."""
        writing = self._writing
        return writing is None or bool(wait([writing], None if seconds == inf else seconds).done)

    def _write_waiting(self, writing: Future[None]) -> None:
        while True:
            with self._lock:
                best, self._waiting = self._waiting, None
                if best is None:
                    self._writing = None
                    writing.set_result(None)
                    return
            for storage in self.storages:
                try:
                    self._write(storage, best)
                except Exception as error:  # noqa: BLE001 - object stores raise errors of their own
                    self._problems.append(not_written(storage, error))

    def _write(self, storage: Storage, best: BestWeights) -> None:
        storage.write(best.file.name, tensor_file(best.tensors, best.metadata))
        storage.sync(BEST)
        files = best_files(storage)
        for old in set(files) - needed(files, best.checkpoints) - {best.file}:
            storage.remove(old.name)


def not_written(storage: Storage, error: Exception) -> JobError:
    """Return the error for best weights that cannot be written."""
    message = (
        f"the best weights could not be written to {storage}: {error}. Check its free space and access rights; the "
        "run continues"
    )
    return JobError(message, "best_weights_not_written", path=str(storage), reason=str(error))
