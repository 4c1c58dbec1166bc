"""Warnings of a run: missing metrics, an exploding loss, hung workers."""

from collections.abc import Collection

from oddlot.core.commands import Evict
from oddlot.core.events import Evaluated
from oddlot.core.records import Record
from oddlot.core.user_warnings import warn
from oddlot.engines.host import Observer
from oddlot.train.job import Job

LOSS_GREW = 1_000.0
"""Growth of the loss that causes a warning, as a factor."""


def warning_observers(job: Job) -> list[Observer]:
    """Return the observers of a run that warn of its metrics and its workers."""
    return [WarnOfMissing({"loss", *job.metrics}), WarnOfLoss(), warn_of_hung]


class WarnOfMissing:
    """Warns once of each metric that is NaN or infinite. The run continues."""

    def __init__(self, expected: Collection[str]) -> None:
        self.expected = set(expected)

    def __call__(self, record: Record) -> None:
        if isinstance(record.event, Evaluated) and (lost := self.expected - record.event.metrics.keys()):
            self.expected -= lost
            warn(
                f"{', '.join(sorted(lost))} of version {record.event.version} on the evaluation set is NaN or infinite "
                "and not shown",
                "figures_without_a_number",
                figures=sorted(lost),
                version=record.event.version,
            )


class WarnOfLoss:
    """Warns once if the evaluation loss grows to a thousand times its least value, and above its first one."""

    def __init__(self) -> None:
        self.least: float | None = None
        self.first: float | None = None
        self.warned = False

    def __call__(self, record: Record) -> None:
        loss = record.event.metrics.get("loss") if isinstance(record.event, Evaluated) else None
        if loss is None or loss <= 0 or self.warned:
            return
        self.least = loss if self.least is None else min(self.least, loss)
        self.first = loss if self.first is None else self.first
        if loss > LOSS_GREW * self.least and loss > self.first:
            self.warned = True
            told = f"the loss on the evaluation set grew from {self.least:.3g} to {loss:.3g}: lower the learning rate"
            warn(told, "loss_grew", least=self.least, loss=loss)


def warn_of_not_measured(version: int, seconds: float) -> None:
    """Warn that a run ends without the metrics of its final version."""
    told = f"the final version {version} was not evaluated within {seconds:g} s: the run ends without its metrics"
    warn(told, "final_not_measured", version=version, seconds=seconds)


def warn_of_hung(record: Record) -> None:
    """Warn of each worker that is replaced because it hangs."""
    for action in record.actions:
        if isinstance(action, Evict):
            told = f"worker {action.node} has not responded for ten times its timeout and is replaced"
            warn(told, "worker_hung", node=action.node)
