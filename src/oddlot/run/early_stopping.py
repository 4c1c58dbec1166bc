"""A callback that stops a run when a metric no longer improves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from oddlot.core.support.text import counted
from oddlot.core.support.validation import AtLeastOne, NotNegative, check_settings
from oddlot.history.best_metric import BestMetric
from oddlot.history.callback import Callback, RunProgress, StopRun


@dataclass(eq=False)
class EarlyStopping(Callback):
    """Stop a run when a metric has not improved for `patience` evaluations in a row.

    A resumed run continues to count: evaluations of earlier processes are included.
    """

    metric: str = "loss"
    """Metric and its direction: "loss", "accuracy", "max NAME" or "min NAME"."""
    patience: AtLeastOne = 3
    """Number of evaluations in a row without an improvement."""
    min_delta: NotNegative = 0.0
    """Smaller changes of the metric are no improvement."""
    best: float | None = field(default=None, init=False)
    """Best value so far."""
    best_version: int = field(default=-1, init=False)
    """Version with the best value."""
    without: int = field(default=0, init=False)
    """Number of evaluations since the best value."""
    newest: int = field(default=-1, init=False)
    """Newest evaluated version."""

    def __post_init__(self) -> None:
        check_settings(self)
        self.target = BestMetric.parse(self.metric, "metric")

    def validate(self, metrics: Sequence[str]) -> None:
        self.target.check(metrics, "metric")

    def on_start(self, run: RunProgress) -> None:
        """Start to count, with the evaluations of earlier processes."""
        self.best, self.best_version, self.without, self.newest = None, -1, 0, -1
        for row in run.history:
            self._count(int(row["versions"]), row)

    def on_evaluation(self, run: RunProgress, version: int, metrics: Mapping[str, float]) -> None:
        """Count an evaluation. Raise StopRun after `patience` evaluations without an improvement."""
        self._count(version, metrics)
        if self.without >= self.patience:
            best = "" if self.best is None else f" than {self.best:.4g} of version {self.best_version:,}"
            raise StopRun(f"no better {self.target.name}{best} in {counted(self.without, 'evaluation')}")

    def _count(self, version: int, metrics: Mapping[str, float]) -> None:
        if version <= self.newest:  # a resumed run may evaluate its first version again
            return
        self.newest = version
        if self.target.improves(metrics, self.best, self.min_delta):
            self.best, self.best_version, self.without = self.target.value(metrics), version, 0
        else:
            self.without += 1
