"""Checks during a run: of weights, losses, metrics, workers and task times. They warn or end the run."""

from collections import deque
from collections.abc import Collection
from math import ceil, isfinite
from statistics import median

from oddlot.checkpoint.background_writer import BackgroundWriter
from oddlot.core.commands import Evict
from oddlot.core.events import Arrived, Evaluated
from oddlot.core.records import Record
from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import JobError
from oddlot.core.support.text import duration, share
from oddlot.core.support.user_warnings import warn
from oddlot.engines.host import Observer
from oddlot.history.metrics import Tally
from oddlot.history.run_outcome import INTERRUPTED
from oddlot.model.weight_store import WeightStore
from oddlot.run.checks import LEAST
from oddlot.train.job import Job

LARGE_SHARE = 1 / 3
"""Share of assigned samples lost with machines above which a warning is shown."""
MIN_LOSSES = 5
"""Minimum number of lost machines for a mean lifetime."""
TASKS_A_LIFE = 10
"""Tasks per mean lifetime with the suggested task size. About a tenth of them are then lost."""
MAX_TASKS = 1_000
"""Number of newest tasks with recorded times."""


class ShortLives:
    """An observer that measures task times, and warns if tasks are too long for the lifetimes of machines."""

    def __init__(self, tally: Tally, strategy: Strategy, batch: int, shards: int) -> None:
        self.tally = tally
        traits = strategy.traits(batch)
        self.shards = shards if traits.shard_tasks else None
        """Number of shards if a task is a complete shard, or else None."""
        self.batch = batch
        self.setting = f"strategy.{traits.task_setting}" if traits.task_setting else "job.batch_size"
        """Name of the setting for the task size."""
        self.seconds: deque[float] = deque(maxlen=MAX_TASKS)

    def __call__(self, record: Record) -> None:
        """Record the time of a finished task."""
        if isinstance(record.event, Arrived):
            self.seconds.append(sum(record.event.update.seconds.values()))

    def warn(self) -> None:
        """Warn if over a third of the assigned samples were lost with machines, and shorter tasks would avoid that."""
        tally = self.tally
        lost = tally.samples.wasted["lost"] / max(1, tally.samples.assigned)
        losses = tally.timeline.workers_lost + tally.timeline.workers_left
        if lost <= LARGE_SHARE or losses < MIN_LOSSES or not self.seconds:
            return
        task, life = median(self.seconds), tally.cost.worker_seconds / losses
        parts: float = ceil(task * TASKS_A_LIFE / life) if life else 1
        if parts < 2:
            return
        shards, smaller = None, f"Use smaller tasks ({self.setting}): aim at"
        if self.shards is not None:
            shards = min(self.shards * parts, tally.size // (LEAST * self.batch))
            if shards <= self.shards:
                return
            parts = shards / self.shards
            smaller = f"Use more shards for smaller tasks: with shards={shards} a task takes"
        warn(
            f"{share(lost)} of the assigned samples were lost with their machines: a task takes {_text(task)} "
            f"(median), and a machine lives {_text(life)} (mean). {smaller} {_text(task / parts)}",
            "tasks_outlive_machines",
            share=lost,
            task_seconds=task,
            machine_seconds=life,
            shards=shards,
        )


def _text(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else f"{seconds:.2g} s"


LOSS_GREW = 1_000.0
"""Minimum growth factor of the loss to show a warning."""


def warning_observers(job: Job) -> list[Observer]:
    """Return observers that warn of invalid metrics, a growing loss and hung workers."""
    expected = {"loss", *job.metrics} if job.evaluates_loss else {*job.metrics}
    return [WarnOfMissing(expected), WarnOfLoss(), warn_of_hung]


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
    """Warns once if the evaluation loss exceeds a thousand times its minimum, and its first value."""

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
            message = (
                f"the loss on the evaluation set grew from {self.least:.3g} to {loss:.3g}: lower the "
                "learning rate"
            )
            warn(message, "loss_grew", least=self.least, loss=loss)


def warn_of_not_measured(version: int, seconds: float) -> None:
    """Warn that the run ends without metrics of its final version."""
    message = f"the final version {version} was not evaluated within {seconds:g} s: the run ends without its metrics"
    warn(message, "final_not_measured", version=version, seconds=seconds)


def warn_of_kept_optimizer() -> None:
    """Warn that the optimizer state of local steps was not restored."""
    warn(
        "keep_optimizer=True: the optimizer state of local steps is not saved, so each worker starts again with a new "
        "optimizer. The resumed run differs from an uninterrupted one",
        "optimizer_not_resumed",
    )


def warn_of_hung(record: Record) -> None:
    """Warn of each worker that is replaced because it hangs."""
    for action in record.actions:
        if isinstance(action, Evict):
            message = f"worker {action.node} has not responded for ten times its timeout and is replaced"
            warn(message, "worker_hung", node=action.node)


LARGE_NORM = 1e18
"""Norm of the weights above which a warning is shown."""


class Divergence:
    """Checks that weights are finite: the sum of large valid updates can overflow."""

    def __init__(self, store: WeightStore) -> None:
        self.store = store
        self.saver: BackgroundWriter | None = None
        """The writer of checkpoints, if there is one."""
        self.warned = False

    def check(self) -> None:
        """Raise JobError if a weight is not finite. Warn once if the norm is very large."""
        norm = self.store.norm
        if not isfinite(norm):
            if self.saver is not None:
                self.saver.wait()  # this checkpoint is valid too
            raise diverged(self.store.version, -1 if self.saver is None else self.saver.newest)
        self.warned = self.warned or warn_if_large(norm)


def warn_if_large(norm: float) -> bool:
    """Return whether the norm of the weights is very large, and warn if it is."""
    if norm > LARGE_NORM:
        message = f"the norm of the weights is {norm:.2g}: training diverges. Lower the learning rate"
        warn(message, "weights_too_large", norm=norm)
    return norm > LARGE_NORM


def diverged(version: int, newest: int = -1) -> JobError:
    """Return the error for weights that are not finite. `newest`: version of the newest valid checkpoint. -1: none."""
    saved = f"; the checkpoint of version {newest:,} is intact" if newest >= 0 else ""
    message = (
        f"the weights of version {version} are not finite: training has diverged. Lower the learning rate"
    )
    return JobError(f"{message}{saved}", "weights_not_finite", version=version, newest=newest)


def check_learned(tally: Tally, ended: str) -> None:
    """Raise JobError if all samples were skipped and the model still has its initial weights."""
    skipped = tally.samples.skipped
    if skipped and not tally.versions and ended != INTERRUPTED:
        raise JobError(
            f"nothing was trained: all {skipped:,} samples had invalid updates and were skipped. Last reason: "
            f"{tally.last_rejection}. Lower the learning rate, or fix the samples",
            "nothing_learned",
            samples=skipped,
        )
