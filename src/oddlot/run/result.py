"""The result of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from oddlot.core.records import Record
from oddlot.core.support.errors import UnknownName
from oddlot.history.log import surviving
from oddlot.history.peer_logs import read_run_log
from oddlot.history.run_folder import RunFolder

if TYPE_CHECKING:
    from oddlot.report.metric_plot import MetricPlot

INTERRUPTED = "interrupted"


class Metrics(dict[str, float]):
    """A dict of metrics by name. An unknown name raises UsageError."""

    def __missing__(self, name: str) -> float:
        error = UnknownName("metric", name, list(self))
        if not self:
            message = "the run has no metrics: pass Job(eval_data=..., metrics={...})"
            raise error.with_message(message)
        raise error


@dataclass(repr=False)
class Run:
    """The result of a run: the trained model, the summary, the metrics and the log."""

    model: nn.Module
    """Trained model, in evaluation mode and on the CPU."""
    summary: dict[str, Any]
    """Summary, as `--json` prints it."""
    history: list[dict[str, float]]
    """One row per evaluation: seconds, versions, epochs, dollars, loss and the job's metrics."""
    ended: str
    """Why the run ended: the goal that was reached, or `interrupted`."""
    folder: Path | None = None
    """Run folder. None if nothing was saved."""
    _records: list[Record] = field(default_factory=list, repr=False)

    def __repr__(self) -> str:
        figures = {name: self.summary[name] for name in ("accuracy", "loss", "seconds", "versions")}
        message = [f"{name}={value:.4g}" for name, value in figures.items() if value is not None]
        message += [f"ended={self.ended!r}"] + ([f"folder={str(self.folder)!r}"] if self.folder else [])
        return f"Run({', '.join(message)})"

    @property
    def records(self) -> Sequence[Record]:
        """Return the records of the log, without work that a resume lost."""
        return surviving(read_run_log(RunFolder(self.folder))) if self.folder else self._records

    @property
    def metrics(self) -> Metrics:
        """Return the metrics and the loss of the newest evaluated version, by name."""
        return Metrics(self.summary["metrics"])

    @property
    def accuracy(self) -> float | None:
        """Return the accuracy of the final version, if the job has this metric."""
        accuracy: float | None = self.summary["accuracy"]
        return accuracy

    @property
    def loss(self) -> float | None:
        """Return the evaluation loss of the final version or, without evaluation data, the running training loss."""
        loss: float | None = self.summary["loss"]
        return loss

    def plot(
        self,
        path: str | PathLike[str] | None = None,
        *,
        metrics: Sequence[str] | None = None,
        over: str = "epochs",
    ) -> "MetricPlot":
        """Plot the metrics in `history`. A notebook shows the result as an image.

        Args:
            path: SVG file to write. None: no file.
            metrics: Names of the metrics, such as ["loss"]. None: all.
            over: Horizontal axis: "epochs", "versions", "seconds" or "dollars".

        Raises:
            UsageError: The run has no evaluations, a name is unknown, or the file cannot be written.
        """
        from oddlot.report.metric_plot import metric_plot

        made = metric_plot(f"Metrics over {over}", self.history, metrics, over)
        if path is not None:
            made.save(Path(path).expanduser())
        return made

    @property
    def hours(self) -> float:
        """Return the duration, in hours of the run's clock (real or virtual)."""
        return float(self.summary["seconds"]) / 3600

    @property
    def dollars(self) -> float:
        """Return the cost of all machines, in dollars."""
        return float(self.summary["dollars"])

    @property
    def wasted_share(self) -> float:
        """Return the share of assigned samples that were wasted."""
        return float(self.summary["samples_wasted"] / max(1, self.summary["samples_assigned"]))
