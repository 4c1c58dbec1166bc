"""Writing checkpoints in a background thread, for a hub or for processes that share the storage."""

import json
import os
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from threading import Thread
from time import monotonic

import torch
from torch import Tensor

from oddlot.checkpoint.format import (
    MANIFEST,
    Checkpoint,
    Part,
    Snapshot,
    age,
    name_of,
    parts_of,
    save,
    saved,
    to_json,
)
from oddlot.checkpoint.local_storage import sync_path
from oddlot.checkpoint.storage import LOG_PARTS, PIECE_BYTES, Storage
from oddlot.core.records import HUB, HostState
from oddlot.core.support.errors import JobError
from oddlot.core.support.user_warnings import warn
from oddlot.core.support.validation import KEEP_CHECKPOINTS
from oddlot.core.tasks import NodeId

MAX_PARTS = 100
LONG_WRITE_SECONDS = 60.0
"""Timeout of the write of one checkpoint, in seconds. A longer write is reported as hanging."""
LogSizes = Mapping[NodeId, tuple[Path, int]]
"""Path of the log, and bytes of its complete lines, by host."""


class LogCopy:
    """Copies the log of a host to the checkpoint storage in parts, so another machine can resume the run."""

    def __init__(self, storage: Storage, log: Path, life: str, host: NodeId) -> None:
        self.storage, self.log, self.life = storage, log, life
        self.prefix = f"{host}." if host != HUB else ""
        self.parts: tuple[Part, ...] = ()
        self._bytes = 0

    def catch_up(self, size: int) -> tuple[Part, ...]:
        """Copy the lines since the last call, up to `size` bytes of the log, and return all parts."""
        if len(self.parts) >= MAX_PARTS:  # start again with one part, to limit the size of manifests
            self.parts, self._bytes = (), 0
        if size > self._bytes:
            name = f"{LOG_PARTS}/{self.prefix}{self._bytes}-{size}-{self.life}.jsonl"
            part = Part(name, **self.storage.write(name, self._pieces(size)))
            self.storage.sync(LOG_PARTS)
            self.parts, self._bytes = (*self.parts, part), size
        return self.parts

    def _pieces(self, size: int) -> Iterator[bytes]:
        with self.log.open("rb") as file:
            file.seek(self._bytes)
            while (missing := size - file.tell()) > 0 and (piece := file.read(min(missing, PIECE_BYTES))):
                yield piece


class BackgroundWriter:
    """Writes checkpoints in a thread, one at a time, and keeps the newest `keep` complete checkpoints.

    The `logs` of all hosts, by host name, are synced before each checkpoint, so the disk has all earlier records. With
    `copy_logs`, their complete lines are also copied to the storage. Errors, such as a full disk, are returned by
    `problems()` and do not end the run.

    A resumed run passes the checkpoint that it continues from (`begun_from`) and the names of all checkpoints at that
    time (`there`). The writer removes these when they are no longer needed. Any other checkpoint was written by another
    process. It is kept, and the next call raises JobError.
    """

    def __init__(
        self,
        storage: Storage,
        logs: Callable[[], Mapping[NodeId, Path]] = dict,
        keep: int = KEEP_CHECKPOINTS,
        *,
        copy_logs: bool = False,
        begun_from: Checkpoint | None = None,
        there: Collection[str] = (),
    ) -> None:
        self.storage, self.logs, self.keep = storage, logs, keep
        self.life = secrets.token_hex(3)
        self.copies_logs = copy_logs
        self._copies: dict[NodeId, LogCopy] = {}
        """Copies of the logs, by host."""
        self._writing: Future[None] | None = None
        self._since = 0.0
        """Start of the current write, on the monotonic clock."""
        self._newest = (-1, -1)
        """Records and version of the newest snapshot passed to `save`."""
        self.completed = ""
        """Name of the newest checkpoint that this writer has completed. Empty before the first one."""
        self._staged: list[Tensor] = []
        self._problems: list[JobError] = []
        self.taken_over = False
        """Whether another process writes checkpoints of this run. This writer then stops writing."""
        self._known = set(there)
        """Checkpoints of this run."""
        self._parts: dict[str, tuple[Part, ...]] = {}
        """Parts of the logs that each complete checkpoint needs, oldest checkpoint first."""
        if begun_from is not None:
            self._parts[begun_from.name] = begun_from.log

    @property
    def busy(self) -> bool:
        """Return whether a checkpoint is being written."""
        return self._writing is not None and not self._writing.done()

    def save(self, snapshot: Snapshot) -> bool:
        """Copy the snapshot and write it in the background. Return False if another checkpoint is being written.

        You may change the snapshot after this returns. A snapshot that is already saved is not written again.
        """
        if self.busy or self.taken_over:
            return False
        self._collect()
        if (snapshot.records, snapshot.version) == self._newest:
            return True
        try:
            sizes = {host: (log, _bytes_of_lines(log)) for host, log in self.logs().items()}
        except OSError as error:
            self._not_written(error)
            return False
        staged = Snapshot(
            snapshot.version,
            snapshot.records,
            snapshot.job,
            {host: _copied_state(state) for host, state in snapshot.hosts.items()},
            dict(snapshot.layout),
            self._stage(snapshot.tensors),
        )
        self._newest = snapshot.records, snapshot.version
        self._writing, self._since = Future(), monotonic()
        # A daemon thread, so hanging storage does not keep the process from exiting.
        arguments = self._writing, staged, sizes
        Thread(target=self._settle, args=arguments, name="checkpoint", daemon=True).start()
        return True

    def problems(self) -> list[JobError]:
        """Return the errors since the last call."""
        if not self.busy:
            self._collect()
        problems, self._problems = self._problems, []
        return problems

    @property
    def newest(self) -> int:
        """Return the version of the newest complete checkpoint of the run, or -1."""
        return max((int(name.split("-")[0]) for name in list(self._parts)), default=-1)

    @property
    def kept_records(self) -> list[int]:
        """Return the number of records of each complete checkpoint that is kept."""
        return [age(name)[0] for name in list(self._parts)]

    def wait(self, seconds: float = inf) -> bool:
        """Wait at most `seconds` for the current write. Return False on a timeout. A second Ctrl-C ends the wait."""
        until = monotonic() + seconds
        while not self._written_within(max(0.0, min(LONG_WRITE_SECONDS, until - monotonic()))):
            self.warn_if_hung()
            if monotonic() >= until:
                return False
        return True

    def warn_if_hung(self) -> None:
        """Warn if the current write has taken `LONG_WRITE_SECONDS`."""
        if not self.busy or monotonic() - self._since < LONG_WRITE_SECONDS:
            return
        self._since = monotonic()
        warn(str(self.hung), self.hung.code, **self.hung.fields)

    @property
    def hung(self) -> JobError:
        """Return the error for storage that hangs."""
        message = (
            f"writing a checkpoint into {self.storage} has taken over {LONG_WRITE_SECONDS:g} s: the storage may hang. "
            "Press Ctrl-C to end the run without it (twice while the run trains)"
        )
        return JobError(
            message, "checkpoint_location_hangs", path=str(self.storage), seconds=LONG_WRITE_SECONDS
        )

    def close(self, timeout: float = inf) -> list[JobError]:
        """Wait for the last checkpoint, at most `timeout` seconds, and return the remaining `problems`.

        The error that another process has taken over the run is omitted, because the caller has already received it.
        """
        with suppress(JobError):
            return self.problems() if self._written_within(timeout) else []
        return []

    def _written_within(self, seconds: float) -> bool:
        return self._writing is None or bool(wait([self._writing], None if seconds == inf else seconds).done)

    def _settle(self, writing: Future[None], snapshot: Snapshot, logs: LogSizes) -> None:
        """Write a checkpoint in this thread, and set the result of `writing`."""
        try:
            self._write(snapshot, logs)
        except BaseException as error:  # noqa: BLE001 - raised again in the hub's thread
            writing.set_exception(error)
        else:
            writing.set_result(None)

    def _write(self, snapshot: Snapshot, logs: LogSizes) -> None:
        for log, _ in logs.values():
            sync_path(log)
        for stranger in self._strangers():
            self.taken_over = True
            path = self.storage.path(stranger)
            raise JobError(
                f"the run was continued elsewhere: checkpoint {path} was written by another process. This process "
                "stops, because its work would be lost",
                "resumed_on_other_machine",
                path=path,
            )
        self._known.add(name_of(snapshot, self.life))
        parts = self._copied(logs) if self.copies_logs else ()
        name = save(self.storage, snapshot, self.life, parts)
        self._parts[name] = parts
        self.completed = name
        try:
            self._prune()
        except OSError as error:
            message = f"old checkpoints cannot be removed from {self.storage}: {error}"
            self._note(message, "old_checkpoints_not_removed", error)

    def _copied(self, logs: LogSizes) -> tuple[Part, ...]:
        """Copy the logs up to these sizes, and return their parts."""
        for host, (log, _) in logs.items():
            self._copies.setdefault(host, LogCopy(self.storage, log, self.life, host))
        return tuple(part for host, (_, size) in logs.items() for part in self._copies[host].catch_up(size))

    def _parts_of(self, name: str) -> tuple[Part, ...]:
        return parts_of(self.storage, name) if self.copies_logs else ()

    def _strangers(self) -> Collection[str]:
        """Return the names of checkpoints of other processes."""
        return set(saved(self.storage)) - self._known

    def _prune(self) -> None:
        """Remove all but the newest `keep` complete checkpoints."""
        if len(self._parts) < self.keep:
            return
        kept = list(self._parts)[-self.keep :]
        needed = {part for name in kept for part in self._parts[name]}
        for name in sorted(self._known.difference(kept)):
            parts = self._parts.get(name) or self._parts_of(name)
            self.storage.remove(name)
            for part in filter(self._may_remove, set(parts) - needed):
                self.storage.remove(part.name)
            self._known.discard(name)
            self._parts.pop(name, None)

    def _may_remove(self, part: Part) -> bool:
        """Return whether a part that no kept checkpoint needs may be removed."""
        return True

    def _collect(self) -> None:
        """Process the result of the last write."""
        writing, self._writing = self._writing, None
        if writing is None or (error := writing.exception()) is None:
            return
        self._newest = (-1, -1)
        if not isinstance(error, OSError):
            raise error
        self._not_written(error)

    def _not_written(self, error: OSError) -> None:
        message = (
            f"a checkpoint could not be written to {self.storage}: {error}. Check its free space "
            "and access rights"
        )
        message += "; the run continues"
        self._note(message, "checkpoint_not_written", error)

    def _note(self, message: str, code: str, error: OSError) -> None:
        self._problems.append(JobError(message, code, path=str(self.storage), reason=str(error)))

    def _stage(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy the tensors into memory that is reused for the next checkpoint."""
        spare, staged = self._staged, {}
        for name, tensor in tensors.items():
            fits = (
                i for i, old in enumerate(spare) if (old.dtype, old.shape) == (tensor.dtype, tensor.shape)
            )
            at = next(fits, None)
            staged[name] = torch.empty_like(tensor, device="cpu") if at is None else spare.pop(at)
            staged[name].copy_(tensor)
        self._staged = list(staged.values())
        return staged


def _copied_state(state: HostState) -> HostState:
    """Return a copy, made with JSON. For plain data, this is faster than `deepcopy`."""
    return HostState(json.loads(to_json(state.conductor)), state.records)


def _bytes_of_lines(log: Path) -> int:
    """Return the number of bytes of the complete lines in a log."""
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - PIECE_BYTES)
            file.seek(start)
            if found := 1 + file.read(end - start).rfind(b"\n"):
                return start + found
            end = start
    return 0


LAUNCH_DIGITS = 4
"""Number of hexadecimal digits of a launch, at the start of the last part of a checkpoint's name."""


class SharedWriter(BackgroundWriter):
    """Writes checkpoints like `BackgroundWriter`, to storage shared by all processes of a `launch`.

    The processes have no common number of records. Instead, names contain the number of the checkpoint: one more
    than the largest number in the storage. If a checkpoint of another launch appears that was not `there` at the
    start, another process has resumed the run.
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
        self._known.update(self._parts)  # other checkpoints may be unfinished writes of another process
        number = 1 + max((age(name)[0] for name in there), default=0)
        super()._write(replace(snapshot, records=number), logs)

    def _may_remove(self, part: Part) -> bool:
        """Return whether no other process of this launch can refer to a part of a log."""
        life = part.name.removesuffix(".jsonl").rpartition("-")[2]
        return life == self.life or not life.startswith(self.launch)

    def _strangers(self) -> Collection[str]:
        """Return the names of checkpoints of other launches."""
        names = set(saved(self.storage)) - self.there
        return [name for name in names if not name.rpartition("-")[2].startswith(self.launch)]
