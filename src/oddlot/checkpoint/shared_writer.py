"""Checkpoints of a run in which one process after the other writes them, as in a mesh."""

import os
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from oddlot.checkpoint.disk import sync_path
from oddlot.checkpoint.format import MANIFEST, Part, Snapshot, age, parts_of, saved
from oddlot.checkpoint.storage import PIECE_BYTES, Storage
from oddlot.checkpoint.writer import BackgroundSaver
from oddlot.core.tasks import NodeId

LAUNCH_DIGITS = 4
"""Hexadecimal digits of a launch, with which the last part of the names of its checkpoints begins."""


class SharedSaver(BackgroundSaver):
    """Writes checkpoints as `BackgroundSaver` does, also beside those of other processes of the same `launch`.

    There is no common number of records. In its place, the names have the number of the checkpoint, which is above that
    of all that are there. `logs` returns the logs of all peers, which are synced before each checkpoint, and copied
    with `copy_logs`. Checkpoints of another launch, but those that were `there` at the start, show that the run goes on
    elsewhere.
    """

    def __init__(
        self,
        storage: Storage,
        keep: int,
        logs: Callable[[], Mapping[NodeId, Path]],
        *,
        copy_logs: bool = False,
        launch: str = "",
        there: Collection[str] = (),
    ) -> None:
        super().__init__(storage, keep=keep, copy_log=copy_logs)
        self.logs, self.there = logs, frozenset(there)
        self.launch = launch or secrets.token_hex(LAUNCH_DIGITS // 2)
        self.life = self.launch + self.life[LAUNCH_DIGITS:]

    def _write(self, snapshot: Snapshot, log_bytes: int) -> None:
        for log in self.logs().values():
            sync_path(log)
        there = saved(self.storage)
        self._known.update(there)
        self._parts = {
            name: self._parts[name] if name in self._parts else self._parts_of(name)
            for name in there
            if name in self._parts or MANIFEST in self.storage.names(name)
        }
        number = 1 + max((age(name)[0] for name in there), default=0)
        super()._write(replace(snapshot, records=number), log_bytes)

    def _parts_of(self, name: str) -> tuple[Part, ...]:
        return parts_of(self.storage, name) if self.copies_log else ()

    def _copied(self, log_bytes: int) -> tuple[Part, ...]:
        """Copy the complete lines of all logs, and return their parts."""
        return tuple(
            part
            for peer, log in self.logs().items()
            for part in self._copy(peer, log).catch_up(_bytes_of_lines(log))
        )

    def _strangers(self) -> Collection[str]:
        """Return the checkpoints of other launches."""
        names = set(saved(self.storage)) - self.there
        return [name for name in names if not name.rpartition("-")[2].startswith(self.launch)]


def _bytes_of_lines(log: Path) -> int:
    """Return the size of a log without a line that is being written."""
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - PIECE_BYTES)
            file.seek(start)
            if found := 1 + file.read(end - start).rfind(b"\n"):
                return start + found
            end = start
    return 0
