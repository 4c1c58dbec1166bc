"""Checkpoints of a run in which one process after the other writes them, as in a mesh."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path

from oddlot.checkpoint.disk import sync_path
from oddlot.checkpoint.format import MANIFEST, Snapshot, age, saved
from oddlot.checkpoint.storage import Storage
from oddlot.checkpoint.writer import BackgroundSaver


class SharedSaver(BackgroundSaver):
    """Writes checkpoints as `BackgroundSaver` does, also beside those of other processes of the run.

    There is no common number of records. In its place, the names have the number of the checkpoint, which is above that
    of all that are there. `logs` returns the logs that are synced before each checkpoint.
    """

    def __init__(self, storage: Storage, keep: int, logs: Callable[[], Iterable[Path]]) -> None:
        super().__init__(storage, keep=keep)
        self.logs = logs

    def _write(self, snapshot: Snapshot, log_bytes: int) -> None:
        for log in self.logs():
            sync_path(log)
        there = saved(self.storage)
        self._known.update(there)
        whole = {name for name in there if name in self._parts or MANIFEST in self.storage.names(name)}
        self._parts = {name: () for name in there if name in whole}
        number = 1 + max((age(name)[0] for name in there), default=0)
        super()._write(replace(snapshot, records=number), log_bytes)

    def _strangers(self) -> Collection[str]:
        """Return none: others may write too."""
        return ()
