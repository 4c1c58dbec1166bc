"""Checkpoints that several processes write in turn, as in a mesh."""

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from oddlot.checkpoint.format import MANIFEST, Part, Snapshot, age, saved
from oddlot.checkpoint.storage import Storage
from oddlot.checkpoint.writer import BackgroundSaver, LogSizes
from oddlot.core.tasks import NodeId

LAUNCH_DIGITS = 4
"""Number of hexadecimal digits that identify a launch, at the start of the last part of a checkpoint's name."""


class SharedSaver(BackgroundSaver):
    """Writes checkpoints like `BackgroundSaver`, to a storage shared by all processes of a `launch`.

    The processes have no common number of records. Names have the number of the checkpoint instead: one more than the
    largest number in the storage. A new checkpoint of another launch, which was not `there` at the start, shows that
    another process has resumed the run.
    """

    def __init__(
        self,
        storage: Storage,
        logs: Callable[[], Mapping[NodeId, Path]],
        keep: int,
        *,
        copy_logs: bool = False,
        launch: str = "",
        there: Collection[str] = (),
    ) -> None:
        super().__init__(storage, logs, keep, copy_logs=copy_logs)
        self.there = frozenset(there)
        self.launch = launch or secrets.token_hex(LAUNCH_DIGITS // 2)
        self.life = self.launch + self.life[LAUNCH_DIGITS:]

    def _write(self, snapshot: Snapshot, logs: LogSizes) -> None:
        there = saved(self.storage)
        self._parts = {
            name: self._parts[name] if name in self._parts else self._parts_of(name)
            for name in there
            if name in self._parts or MANIFEST in self.storage.names(name)
        }
        self._known.update(self._parts)  # others may be unfinished: another process writes them
        number = 1 + max((age(name)[0] for name in there), default=0)
        super()._write(replace(snapshot, records=number), logs)

    def _may_remove(self, part: Part) -> bool:
        """Return whether no other process of this launch may still refer to a part of a log."""
        life = part.name.removesuffix(".jsonl").rpartition("-")[2]
        return life == self.life or not life.startswith(self.launch)

    def _strangers(self) -> Collection[str]:
        """Return the checkpoints of other launches."""
        names = set(saved(self.storage)) - self.there
        return [name for name in names if not name.rpartition("-")[2].startswith(self.launch)]
