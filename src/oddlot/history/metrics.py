"""The metrics of a run, computed from its records."""

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import InitVar, dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from oddlot.core import events
from oddlot.core.commands import Average, Blend, Step
from oddlot.core.records import ECHO, Record
from oddlot.core.support.errors import CheckpointError
from oddlot.core.support.serialization import DAMAGED
from oddlot.core.tasks import Facts, NodeId
from oddlot.history.combined_updates import CombinedUpdates
from oddlot.history.cost import Cost
from oddlot.history.log import given_out, surviving
from oddlot.history.sample_counts import SampleCounts, Traffic, rejection
from oddlot.history.worker_timeline import WorkerStates, WorkerTimeline

VERSION_FIGURES = ("seconds", "versions", "epochs", "dollars")
"""Keys of a row of the history in addition to the metrics: time, number, epochs and cost of the version."""
MAX_NOTED, NOTES = 10_000, 4
MERGES = (Step, Blend, Average)
SMOOTHING = 0.05
"""Weight of the newest update in the running training loss."""


class VersionFigures(NamedTuple):
    """Time, epochs and cost of a version."""

    seconds: float = 0.0
    epochs: float = 0.0
    dollars: float = 0.0
    merges: float = 0.0
    """Number of merges in the version. It is smaller than the version number if merges were overwritten."""


@dataclass
class VersionNotes:
    """Time, epochs and cost of the newest `MAX_NOTED` versions."""

    newest: int = 0
    rows: "array[float]" = field(default_factory=lambda: array("d", bytes(8 * NOTES * MAX_NOTED)))

    def add(self, figures: VersionFigures) -> None:
        """Record time, epochs and cost of a new version."""
        self.newest += 1
        at = NOTES * (self.newest % MAX_NOTED)
        self.rows[at : at + NOTES] = array("d", figures)

    def of(self, version: int) -> VersionFigures | None:
        """Return the figures of a version, or None if it is too old."""
        if self.newest - version >= MAX_NOTED:
            return None
        at = NOTES * (version % MAX_NOTED)
        return VersionFigures(*self.rows[at : at + NOTES])


@dataclass
class Quality:
    """Losses and metrics of the model."""

    training_loss: float | None = None
    """Running mean over updates."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the newest evaluated version."""
    evaluated_version: int = -1
    history: list[dict[str, float]] = field(default_factory=list)
    """One row per evaluation: the metrics, and time, epochs and cost of the version."""

    def train(self, loss: float | None) -> None:
        """Count the loss of an update."""
        if loss is not None:
            before = loss if self.training_loss is None else self.training_loss
            self.training_loss = before + SMOOTHING * (loss - before)

    def evaluate(self, version: int, made: VersionFigures, metrics: Mapping[str, float]) -> None:
        """Add the metrics of a version. If several averages of peers have the same number, the last average counts."""
        if version >= self.evaluated_version:
            self.metrics, self.evaluated_version = dict(metrics), version
        figures = (made.seconds, float(version), made.epochs, made.dollars)
        self.history.append(dict(zip(VERSION_FIGURES, figures, strict=True)) | dict(metrics))

    def loss(self) -> float | None:
        """Return the loss of the newest evaluation or, without evaluations, the training loss."""
        return self.training_loss if self.evaluated_version < 0 else self.metrics.get("loss")


@dataclass
class Tally:
    """The metrics of a run, updated by each record."""

    size: int = 1
    """Samples per epoch."""
    seconds: float = 0.0
    updates: int = 0
    echoes: int = 0
    """Updates that arrived too late to be merged."""
    rejections: Counter[str] = field(default_factory=Counter)
    """Rejected updates, by reason (`invalid`, `rejected` or `gated` of `WASTES`)."""
    last_rejection: str = ""
    overwritten: int = 0
    """Merges that a later merge overwrote, with a store without transactions."""
    read: int | None = None
    """Version that a parameter server read before it wrote the newest update. If None, the newest version."""
    resumed_at: int = -1
    """Version that the run was last resumed from. -1: it was not resumed."""
    samples: SampleCounts = field(default_factory=SampleCounts)
    combined: CombinedUpdates = field(default_factory=CombinedUpdates)
    traffic: Traffic = field(default_factory=Traffic)
    exchanges: int = 0
    """Models that peers of a mesh received from each other."""
    bytes_exchanged: int = 0
    """Bytes of these models."""
    models_rejected: Counter[NodeId] = field(default_factory=Counter)
    """Rejected models and requests of peers, by sender."""
    cost: Cost = field(default_factory=Cost)
    quality: Quality = field(default_factory=Quality)
    notes: VersionNotes = field(default_factory=VersionNotes)
    keep: InitVar[bool] = False
    """Whether to keep the history of workers (`WorkerTimeline.keep`)."""

    def __post_init__(self, keep: bool) -> None:
        self.timeline = WorkerTimeline(self.samples, keep)

    @property
    def versions(self) -> int:
        """Number of merges so far."""
        return self.notes.newest

    @property
    def workers(self) -> dict[NodeId, WorkerStates]:
        """All workers that joined."""
        return self.timeline.workers

    @property
    def epochs(self) -> float:
        """Samples merged or skipped, in passes over the data."""
        return (self.samples.merged + self.samples.skipped) / self.size

    @property
    def dollars(self) -> float:
        """Cost so far."""
        return self.cost.dollars

    @property
    def dollars_per_point(self) -> float | None:
        """Cost per percentage point of accuracy, or None if no trained model was evaluated."""
        accuracy = self.quality.metrics.get("accuracy", 0.0) if self.versions else 0.0
        return self.dollars / (100 * accuracy) if accuracy > 0 else None

    @property
    def hours(self) -> float:
        """Hours on the run's clock."""
        return self.seconds / 3600

    @property
    def merged_at(self) -> float:
        """Time of the last merge, in seconds of the run's clock."""
        return self.notes.rows[NOTES * (self.versions % MAX_NOTED)]

    def __call__(self, record: Record) -> None:
        """Count a record."""
        if isinstance(record.event, events.Resumed):
            self.cost.stopped(record.event, record.now)
        self.advance(record.now)
        self._hear(record)
        self.timeline.hear(record)
        for action in record.actions:
            self.timeline.act(action, record.now)
            if isinstance(action, MERGES):
                self._note_version()

    def advance(self, now: float) -> None:
        """Advance the time and add its cost."""
        self.cost.advance(now)
        self.seconds = now

    def finish(self) -> None:
        """Count open tasks as wasted: the run has ended."""
        self.timeline.finish()

    def summary(self) -> dict[str, Any]:
        """Return the summary as plain data, with None for unknown values."""
        return {
            "accuracy": self.quality.metrics.get("accuracy"),
            "loss": self.quality.loss(),
            "metrics": self.quality.metrics,
            "seconds": self.seconds,
            "epochs": self.epochs,
            "versions": self.versions,
            "updates": self.updates,
            **self.rejected,
            **self.samples.summary,
            **self.combined.summary,
            "overwritten": self.overwritten,
            **self.traffic.summary,
            **self._exchanged,
            "dollars": self.dollars,
            "dollars_lost": self.cost.dollars_lost,
            "dollars_per_point": self.dollars_per_point,
            **self.cost.presence,
            **self.timeline.summary,
        }

    @property
    def _exchanged(self) -> dict[str, Any]:
        """Return the counts of exchanges between peers; empty in a run with a hub."""
        if not (self.exchanges or self.models_rejected):
            return {}
        return {
            "exchanges": self.exchanges,
            "bytes_exchanged": self.bytes_exchanged,
            "models_rejected": dict(self.models_rejected),
        }

    @property
    def rejected(self) -> dict[str, int]:
        """Return the numbers of rejected updates, under the names of a run's summary."""
        reasons = ["invalid", "rejected", *(["gated"] if self.rejections["gated"] else [])]
        return {f"updates_{reason}": self.rejections[reason] for reason in reasons}

    def value(self, name: str) -> float | None:
        """Return the value of a figure or a metric by its name in goals, or None while it is unknown."""
        if name == "loss":
            return self.quality.loss()
        if name in GOAL_FIGURES:
            return float(GOAL_FIGURES[name](self))
        return self.quality.metrics.get(name)

    def version_of(self, name: str) -> int:
        """Return the version of a value: for a metric, the last evaluated version."""
        measured = name not in GOAL_FIGURES and self.quality.evaluated_version >= 0
        return self.quality.evaluated_version if measured else self.versions

    def _hear(self, record: Record) -> None:
        match event := record.event:
            case events.Arrived():
                self._arrived(event.update, record.remark == ECHO)
            case events.Cancelled(bytes_down=down, bytes_data=data):
                self.traffic.add(0, down, data, wasted=True)
            case events.Joined() | events.Priced() | events.Ordered() | events.Gone() | events.Lost():
                self.cost.hear(event, self.workers)
            case events.Combined():
                self.combined.add(event, self.timeline.merged)
            case events.UpdateRejected():
                self.rejections[rejection(event)] += 1
                self.last_rejection = event.reason
            case events.Evaluated(version, metrics):
                now = VersionFigures(self.seconds, self.epochs, self.dollars)
                self.quality.evaluate(version, self.notes.of(version) or now, metrics)
            case events.ModelReceived(bytes=received):
                self.exchanges += 1
                self.bytes_exchanged += received
            case events.ModelRejected(peer, _, reason):
                self.models_rejected[peer] += 1
                self.last_rejection = reason
            case events.Resumed():
                self.traffic.resume(event)
                self.resumed_at = self.versions

    def _arrived(self, facts: Facts, echo: bool) -> None:
        self.traffic.add(facts.bytes_up, facts.bytes_down, facts.bytes_data, echo)
        if echo:
            self.echoes += 1
            return
        self.updates += 1
        self.read = facts.read
        self.quality.train(facts.loss)

    def _note_version(self) -> None:
        base = self.versions if self.read is None else self.read
        merges = int(self.notes.rows[NOTES * (base % MAX_NOTED) + NOTES - 1]) + 1
        self.notes.add(VersionFigures(self.seconds, self.epochs, self.dollars, merges))
        self.read, self.overwritten = None, self.versions - merges


GOAL_FIGURES: dict[str, Callable[[Tally], float]] = {
    "seconds": attrgetter("seconds"),
    "hours": attrgetter("hours"),
    "versions": attrgetter("versions"),
    "epochs": attrgetter("epochs"),
    "samples": attrgetter("samples.merged"),
    "dollars": attrgetter("dollars"),
}
"""Figures that `until` supports in addition to `loss` and the job's metrics."""


def take_into_account(tally: Tally, records: Iterable[Record], log: Path) -> None:
    """Count the records of a log. Raise CheckpointError if they are not the history of one run."""
    for record in records:
        try:
            tally(record)
        except DAMAGED:
            raise CheckpointError(
                f"{log} is damaged: {record.event} at {record.now} s does not follow from the records before it. "
                "Restore the file from a copy",
                "damaged_file",
                path=str(log),
                event=str(record.event),
                seconds=record.now,
            ) from None


def resumed_after(after_record: int, tally: Tally, lost: Sequence[Record], log: Path) -> events.Resumed:
    """Return the event of a resume, with the samples, cost and bytes of the `lost` records.

    Raise CheckpointError if the records are not the history of one run.
    """
    further = deepcopy(tally)
    take_into_account(further, lost, log)
    return events.Resumed(
        after_record,
        given_out(lost),
        further.dollars - tally.dollars,
        further.cost.dollars_of_hub - tally.cost.dollars_of_hub,
        further.traffic.bytes_up - tally.traffic.bytes_up,
        further.traffic.bytes_down - tally.traffic.bytes_down,
        further.traffic.bytes_data - tally.traffic.bytes_data,
    )


def use_saved_model(tally: Tally, records: Iterable[Record], peers: Collection[NodeId]) -> None:
    """Set the metrics to the metrics of the saved model of a mesh, the final average of these peers.

    After a partition, the other peers may have evaluated another average later.
    """
    lead = None
    for record in records:
        match record.event:
            case events.Averaged(averaged, is_final=True) if list(averaged) == list(peers):
                lead = record.peer
            case events.Evaluated(metrics=metrics) if lead is not None and record.peer == lead:
                tally.quality.metrics, lead = dict(metrics), None


def tally_of(records: Sequence[Record], size: int) -> Tally:
    """Return the metrics of a complete log."""
    tally = Tally(size)
    for record in surviving(records):
        tally(record)
    return tally
