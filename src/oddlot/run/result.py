"""What became of a training."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from oddlot.core.errors import UnknownName
from oddlot.core.records import Record
from oddlot.history.log import read_log, surviving
from oddlot.history.run_folder import RunFolder

INTERRUPTED = "interrupted"


class Metrics(dict[str, float]):
    """What was measured, by name. UsageError for a name that was not."""

    def __missing__(self, name: str) -> float:
        error = UnknownName("metric", name, list(self))
        if not self:
            told = "the run measured no metrics: pass Job(eval_data=..., metrics={...})"
            raise error.retold(told)
        raise error


@dataclass(repr=False)
class Run:
    """What became of a training.

    `model` has the final weights, in evaluation mode, on the CPU; `summary` the figures that `--json` prints; `history`
    a row an evaluation: seconds, versions, epochs, dollars, loss and the job's metrics. `ended` is why: the goal that
    was reached, or `interrupted`; `folder` where the run lies, if it was given one.
    """

    model: nn.Module
    """with the final weights, in evaluation mode, on the CPU"""
    summary: dict[str, Any]
    """the figures that `--json` prints"""
    history: list[dict[str, float]]
    """a row an evaluation: seconds, versions, epochs, dollars, loss and the job's metrics"""
    ended: str
    """why: the goal that was reached, or `interrupted`"""
    folder: Path | None = None
    _records: list[Record] = field(default_factory=list, repr=False)

    def __repr__(self) -> str:
        figures = {name: self.summary[name] for name in ("accuracy", "loss", "seconds", "versions")}
        told = [f"{name}={value:.4g}" for name, value in figures.items() if value is not None]
        told += [f"ended={self.ended!r}"] + ([f"folder={str(self.folder)!r}"] if self.folder else [])
        return f"Run({', '.join(told)})"

    @property
    def records(self) -> Sequence[Record]:
        """The log: everything that happened and was decided, without what a resumed run had to do again."""
        return surviving(read_log(RunFolder(self.folder).log)) if self.folder else self._records

    @property
    def metrics(self) -> Metrics:
        """Of the newest version that was evaluated, by name: the job's metrics and the loss on the evaluation set."""
        return Metrics(self.summary["metrics"])

    @property
    def accuracy(self) -> float | None:
        """Of the final version on the evaluation set, if the job measures it."""
        accuracy: float | None = self.summary["accuracy"]
        return accuracy

    @property
    def loss(self) -> float | None:
        """Of the final version on the evaluation set; without one, the running training loss."""
        loss: float | None = self.summary["loss"]
        return loss

    @property
    def hours(self) -> float:
        """On the run's clock, virtual or real."""
        return float(self.summary["seconds"]) / 3600

    @property
    def dollars(self) -> float:
        """Machine-seconds times price."""
        return float(self.summary["dollars"])

    @property
    def wasted_share(self) -> float:
        """The part of all samples given out that was in vain."""
        return float(self.summary["samples_wasted"] / max(1, self.summary["samples_assigned"]))
