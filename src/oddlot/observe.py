"""The log of a run, and what it means: every figure is a function of the records."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oddlot.core import words as w
from oddlot.core.conductor import ECHO, Conductor
from oddlot.core.errors import CheckpointError, JobError
from oddlot.core.plain import from_plain, to_plain

FORMAT = 1
SMOOTHING = 0.05
"""weight of the newest update in the running training loss"""


@dataclass(slots=True)
class WorkerRow:
    """What one worker is doing, as far as the log knows."""

    state: str = "waiting"
    """`working`, `waiting`, `leaving` or `lost`"""
    since: float = 0.0
    samples: int = 0
    """computed by it and merged"""
    price: float = 0.0
    tasks: set[w.TaskId] = field(default_factory=set)
    """what it was given and has not answered"""


@dataclass
class Tally:
    """The figures of a run, kept up to date record by record.

    `size` is the number of samples of an epoch.
    """

    size: int = 1
    seconds: float = 0.0
    versions: int = 0
    updates: int = 0
    samples_merged: int = 0
    samples_wasted: int = 0
    """assigned, but lost, cancelled, dropped, refused or too late; with `finish`, also what was under way"""
    bytes_up: int = 0
    bytes_down: int = 0
    dollars: float = 0.0
    workers_lost: int = 0
    echoes: int = 0
    refused: int = 0
    training_loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """of the newest version that was evaluated"""
    evaluated_version: int = -1
    history: list[dict[str, float]] = field(default_factory=list)
    """one row an evaluation: seconds, versions, epochs, dollars and the metrics"""
    workers: dict[w.NodeId, WorkerRow] = field(default_factory=dict)
    under_way: dict[w.TaskId, int] = field(default_factory=dict)
    """samples of every task or update that is neither merged nor wasted"""
    last_refusal: str = ""
    dollars_per_second: float = 0.0

    @property
    def epochs(self) -> float:
        """Samples merged, in passes over the data."""
        return self.samples_merged / self.size

    @property
    def hours(self) -> float:
        """On the run's clock."""
        return self.seconds / 3600

    def __call__(self, record: w.Record) -> None:
        """Take one more record into account."""
        self.advance(record.now)
        self._event(record)
        for action in record.actions:
            self._action(action, record.now)

    def advance(self, now: float) -> None:
        """Time has passed, and cost its money."""
        self.dollars += self.dollars_per_second * (now - self.seconds)
        self.seconds = now

    def summary(self) -> dict[str, Any]:
        """The closing figures as plain data; None where something is not known."""
        return {
            "accuracy": self.metrics.get("accuracy"),
            "loss": self.value("loss"),
            "metrics": self.metrics,
            "seconds": self.seconds,
            "epochs": self.epochs,
            "versions": self.versions,
            "updates": self.updates,
            "samples_merged": self.samples_merged,
            "samples_wasted": self.samples_wasted,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "dollars": self.dollars,
            "workers_lost": self.workers_lost,
        }

    def finish(self) -> None:
        """The run is over: what was under way is wasted."""
        self.samples_wasted += sum(self.under_way.values())
        self.under_way.clear()

    def value(self, name: str) -> float | None:
        """A figure by the name that goals use, or a metric; None while it is not known."""
        if name == "loss":
            return self.training_loss if self.evaluated_version < 0 else self.metrics.get("loss")
        if name in GOAL_FIGURES:
            return float(getattr(self, GOAL_FIGURES[name]))
        return self.metrics.get(name)

    def version_of(self, name: str) -> int:
        """The version that a figure is about: a metric is known only when a few more have been made."""
        measured = name not in GOAL_FIGURES and self.evaluated_version >= 0
        return self.evaluated_version if measured else self.versions

    def _event(self, record: w.Record) -> None:
        match record.event:
            case w.Joined(node, price):
                self.workers[node] = WorkerRow(since=record.now, price=price)
                self.dollars_per_second += price / 3600
            case w.Leaving(node):
                self._state(node, "leaving", record.now)
            case w.Lost(node):
                self._lost(node, record.now)
            case w.Arrived(facts):
                self._arrived(facts, record.remark == ECHO, record.now)
            case w.Cancelled(task, node):
                self._wasted(task)
                self._answered(task, node, record.now)
            case w.Refused(task, reason):
                self.refused += 1
                self.last_refusal = reason
                self._wasted(task)
                self._answered(task, task.rpartition(":")[0], record.now)
            case w.Evaluated(version, metrics):
                self._evaluated(version, metrics)
            case w.Resumed(_, lost):
                self.samples_wasted += lost
                for node in list(self.workers):
                    self._gone(node, record.now)

    def _arrived(self, facts: w.Facts, echo: bool, now: float) -> None:
        self.bytes_up += facts.bytes_up
        self.bytes_down += facts.bytes_down
        self._answered(facts.id, facts.sender, now)
        if echo:
            self.echoes += 1
            self._wasted(facts.id)
            return
        self.updates += 1
        self.under_way[facts.id] = facts.samples
        if facts.loss is not None:
            before = facts.loss if self.training_loss is None else self.training_loss
            self.training_loss = before + SMOOTHING * (facts.loss - before)

    def _action(self, action: w.Action, now: float) -> None:
        match action:
            case w.Start(task):
                self.under_way[task.id] = w.samples_in(task.spans)
                self.workers[task.node].tasks.add(task.id)
                self._state(task.node, "working", now)
            case w.Step(shares) | w.Blend(shares):
                self.versions += 1
                for update in shares:
                    samples = self.under_way.pop(update)
                    self.samples_merged += samples
                    if row := self.workers.get(update.rpartition(":")[0]):
                        row.samples += samples
            case w.Drop(update) | w.Abort(update):
                self._wasted(update)

    def _evaluated(self, version: int, metrics: Any) -> None:
        if version > self.evaluated_version:
            self.metrics, self.evaluated_version = dict(metrics), version
        figures = {
            "seconds": self.seconds,
            "versions": float(version),
            "epochs": self.epochs,
            "dollars": self.dollars,
        }
        self.history.append(figures | dict(metrics))

    def _lost(self, node: w.NodeId, now: float) -> None:
        if self._gone(node, now):
            self.workers_lost += 1

    def _gone(self, node: w.NodeId, now: float) -> bool:
        """It is not there any more, whyever. False if it was gone before."""
        row = self.workers.get(node)
        if row is None or row.state == "lost":
            return False
        self.dollars_per_second -= row.price / 3600
        row.state, row.since = "lost", now
        for task in row.tasks:
            self._wasted(task)
        row.tasks.clear()
        return True

    def _answered(self, task: w.TaskId, node: w.NodeId, now: float) -> None:
        if row := self.workers.get(node):
            row.tasks.discard(task)
            if not row.tasks and row.state == "working":
                self._state(node, "waiting", now)

    def _state(self, node: w.NodeId, state: str, now: float) -> None:
        row = self.workers.get(node)
        if row is not None and row.state != "lost":
            row.state, row.since = state, now

    def _wasted(self, task: w.TaskId) -> None:
        self.samples_wasted += self.under_way.pop(task, 0)


GOAL_FIGURES = {
    "seconds": "seconds",
    "hours": "hours",
    "versions": "versions",
    "epochs": "epochs",
    "samples": "samples_merged",
    "dollars": "dollars",
}
"""What an `until` may speak of beside `loss` and the job's metrics."""


# --- the log in a file -------------------------------------------------------------------------


class Log:
    """Writes records as JSON lines, the first line telling how to rebuild the conductor.

    Opened on an existing file it goes on behind the last whole line, or behind so many records as are `sound`. Lines
    reach the file at least once a second of the run's time, as long as `keep_up` is called.
    """

    def __init__(self, path: Path, conductor: Conductor, sound: int | None = None) -> None:
        self.path = path
        self.records = 0
        self._flushed = 0.0
        with self._disk():
            if path.exists():
                lines = _whole_lines(path).splitlines(keepends=True)
                whole = b"".join(lines if sound is None else lines[: 1 + sound])
                self.records = max(0, whole.count(b"\n") - 1)
                os.truncate(path, len(whole))
            self._file = path.open("a", encoding="utf-8")
        if self._file.tell() == 0:
            start = {key: value for key, value in conductor.to_plain().items() if key != "rng"}
            self._write({"is": "Header", "format": FORMAT, "conductor": start})

    def __call__(self, record: w.Record) -> None:
        """Append one record."""
        self._write(to_plain(record))
        self.records += 1
        self.keep_up(record.now)

    def keep_up(self, now: float) -> None:
        """Flush if that was a second ago."""
        if now - self._flushed >= 1.0:
            self._flushed = now
            self.flush()

    def flush(self) -> None:
        """Bring every line to the file."""
        with self._disk():
            self._file.flush()

    def close(self) -> None:
        """Close the file; flush it before to hear of what cannot be written."""
        with suppress(OSError):
            self._file.close()

    def _write(self, plain: dict[str, Any]) -> None:
        line = json.dumps(plain, separators=(",", ":"), allow_nan=False)
        with self._disk():
            self._file.write(line + "\n")

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise JobError(
                f"cannot write the log {self.path} ({error.strerror}): make room, then resume the run"
            ) from error


def read_log(path: Path) -> Iterator[w.Record]:
    """The records of a log, in order; an unfinished last line is left out.

    Raises CheckpointError naming the line that is damaged, before which all is sound.
    """
    for number, line in enumerate(_whole_lines(path).splitlines(), 1):
        try:
            plain = json.loads(line)
            if plain["is"] != ("Record" if number > 1 else "Header"):
                raise ValueError
            if number > 1:
                yield from_plain(w.Record, plain)
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(f"{path}:{number} is damaged: restore the file from a copy") from None


def read_sound(path: Path) -> tuple[list[w.Record], str]:
    """The records before the first damaged line, and a sentence about that line; empty where there is none."""
    records = []
    try:
        for record in read_log(path):
            records.append(record)  # noqa: PERF402 - what came before the damage is kept
    except CheckpointError:
        if not records:
            raise
        return records, f"{path}:{len(records) + 2} is damaged and left out, with all that follows"
    return records, ""


def surviving(records: Iterable[w.Record], until: int | None = None) -> list[w.Record]:
    """The history that holds: what came after a checkpoint that was resumed from is left out.

    With `until`, the run is about to be resumed from the checkpoint that was made after so many records.
    """
    kept: list[tuple[int, w.Record]] = []
    for number, record in enumerate(records):
        if isinstance(record.event, w.Resumed):
            kept = [(index, old) for index, old in kept if index < record.event.after_record]
        kept.append((number, record))
    return [record for index, record in kept if until is None or index < until]


def given_out(records: Iterable[w.Record]) -> int:
    """How many samples were given out in these records, and in those that they had made void."""
    total = 0
    for record in records:
        total += sum(w.samples_in(start.task.spans) for start in record.actions if isinstance(start, w.Start))
        total += record.event.samples_lost if isinstance(record.event, w.Resumed) else 0
    return total


def tally_of(records: Sequence[w.Record], size: int) -> Tally:
    """The figures of a whole log."""
    tally = Tally(size)
    for record in surviving(records):
        tally(record)
    return tally


def trace(records: Iterable[w.Record]) -> str:
    """16 characters that are equal where the same things were decided about the same events, in the same order.

    Times that were measured and losses are left out: in the simulator one seed has one trace.
    """
    digest = hashlib.sha256()
    for record in records:
        event = record.event
        about = event.update.id if isinstance(event, w.Arrived) else getattr(event, "node", "")
        digest.update(f"{type(event).__name__} {about} {record.actions}\n".encode())
    return digest.hexdigest()[:16]


def _whole_lines(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"cannot read the log {path} ({error.strerror}): restore it from a copy, or begin anew with force=True "
            "(--force)"
        ) from None
    return data[: data.rfind(b"\n") + 1]
