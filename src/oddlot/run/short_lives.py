"""A warning at the end of a run whose machines were often lost before they finished their tasks."""

from collections import deque
from math import ceil
from statistics import median

from oddlot.core.events import Arrived
from oddlot.core.records import Record
from oddlot.core.strategy import Strategy
from oddlot.core.user_warnings import warn
from oddlot.formatting import duration, share
from oddlot.history.metrics import Tally
from oddlot.run.shard_count import LEAST

LARGE_SHARE = 1 / 3
"""Share of the assigned samples, lost with machines, above which the warning is shown."""
MIN_LOSSES = 5
"""Least number of losses for a mean lifetime."""
TASKS_A_LIFE = 10
"""Tasks per mean lifetime with the suggested task size; about a tenth of them is then lost."""
MAX_TASKS = 1_000
"""Newest tasks whose times are kept."""


class ShortLives:
    """An observer that measures task times, and warns at the end if tasks take too long for the machines' lifetimes."""

    def __init__(self, tally: Tally, strategy: Strategy, batch: int, shards: int) -> None:
        self.tally = tally
        traits = strategy.traits(batch)
        self.shards = shards if traits.whole_shards else None
        """Number of shards, if a task is a whole shard."""
        self.batch = batch
        self.setting = f"strategy.{traits.task_setting}" if traits.task_setting else "job.batch_size"
        """Setting of the task size otherwise."""
        self.seconds: deque[float] = deque(maxlen=MAX_TASKS)

    def __call__(self, record: Record) -> None:
        """Record the time of a finished task."""
        if isinstance(record.event, Arrived):
            self.seconds.append(sum(record.event.update.seconds.values()))

    def warn(self) -> None:
        """Warn if more than a third of the samples was lost with machines, and shorter tasks would avoid that."""
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
            f"{share(lost)} of the assigned samples were lost with their machines: a task takes {_told(task)} "
            f"(median), and a machine lives {_told(life)} (mean). {smaller} {_told(task / parts)}",
            "tasks_outlive_machines",
            share=lost,
            task_seconds=task,
            machine_seconds=life,
            shards=shards,
        )


def _told(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else f"{seconds:.2g} s"
