"""The interface of callbacks: `Callback`, `RunProgress`, and `StopRun`, which ends a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from oddlot.core.records import Record
from oddlot.history.goals import Goal
from oddlot.history.metrics import Tally

RecordFunction = Callable[[Record], None]
"""A function of a record. It is the shortest form of a callback."""


class StopRun(Exception):
    """Raise this in a callback to end the run.

    The run is evaluated, saved and returned, as if it had reached its goal. `Run.ended` contains the text, such as
    "stopped: no progress".
    """

    @property
    def ended(self) -> str:
        """Return why the run ended."""
        return f"stopped: {self}" if str(self) else "stopped"


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run, for callbacks. Its properties are current whenever you read them."""

    job: str
    """Name of the job."""
    goal: Goal
    """Goal of the run. `str(goal)` is its text."""
    folder: Path | None = None
    """Run folder. None if nothing is saved."""
    earlier: Sequence[Record] = ()
    """Records of earlier processes, if the run was resumed."""
    tally: Tally = field(default_factory=Tally, repr=False)
    """All figures of the run. Do not change them."""

    @property
    def samples_per_epoch(self) -> int:
        """Return the number of training samples."""
        return self.tally.size

    @property
    def seconds(self) -> float:
        """Return the time on the run's clock, in seconds."""
        return self.tally.seconds

    @property
    def version(self) -> int:
        """Return the newest version. On a mesh, this is the number of merges of all peers."""
        return self.tally.versions

    @property
    def epochs(self) -> float:
        """Return the number of merged samples, in passes over the data."""
        return self.tally.epochs

    @property
    def samples(self) -> int:
        """Return the number of merged samples."""
        return self.tally.samples.merged

    @property
    def dollars(self) -> float:
        """Return the cost."""
        return self.tally.dollars

    @property
    def workers(self) -> int:
        """Return the number of workers that are present."""
        return sum(not worker.gone for worker in self.tally.workers.values())

    @property
    def training_loss(self) -> float | None:
        """Return the running mean of the updates' losses. None before the first update."""
        return self.tally.quality.training_loss

    @property
    def history(self) -> Sequence[Mapping[str, float]]:
        """Return one row per evaluation, as in `Run.history`, evaluations of earlier processes included."""
        return self.tally.quality.history


class Callback:
    """Base class of callbacks. Override the methods that you need: they do nothing by default.

    Methods run in the program that calls `fit`, between two events, and must not change the run. They may raise
    `StopRun`. After another exception, a warning is shown and the callback is not called again.
    """

    def validate(self, metrics: Sequence[str]) -> None:
        """Raise UsageError if the callback does not fit the run. Called before anything starts.

        `metrics` are the names of the evaluated metrics, "loss" included. Empty without evaluations.
        """

    def on_start(self, run: RunProgress) -> None:
        """Handle the start of the run, or of a resumed run. `run.earlier` and `run.history` have its past."""

    def on_record(self, run: RunProgress, record: Record) -> None:
        """Handle a record: an event, its time, and the actions that followed. Called after these actions."""

    def on_evaluation(self, run: RunProgress, version: int, metrics: Mapping[str, float]) -> None:
        """Handle the metrics of a version, "loss" included. Called after `on_record`."""

    def on_checkpoint(self, run: RunProgress, version: int, path: str) -> None:
        """Handle a checkpoint that is complete. `path` is its folder or URL. Later checkpoints replace it."""

    def on_interrupt(self, run: RunProgress) -> None:
        """Handle Ctrl-C, SIGTERM or SIGHUP. The run saves its state, then ends."""

    def on_end(self, run: RunProgress, ended: str) -> None:
        """Handle the end of the run, also of a failed run. `ended` is the reason, as in `Run.ended`."""


class FunctionCallback(Callback):
    """A function of a record as a callback. It receives the records of earlier processes first."""

    def __init__(self, function: RecordFunction) -> None:
        self.function = function

    def __repr__(self) -> str:
        return repr(self.function)

    def on_start(self, run: RunProgress) -> None:
        for record in run.earlier:
            self.function(record)

    def on_record(self, run: RunProgress, record: Record) -> None:
        self.function(record)


def as_callback(given: Callback | RecordFunction) -> Callback:
    """Return a callback. A function is wrapped."""
    return given if isinstance(given, Callback) else FunctionCallback(given)
