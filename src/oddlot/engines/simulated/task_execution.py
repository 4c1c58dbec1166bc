"""The execution of a task on a simulated worker: transfers, computation and end."""

from dataclasses import dataclass, replace
from math import inf
from typing import Any

from oddlot.core.events import Cancelled
from oddlot.core.sample_spans import minibatch_cuts, samples_in, split
from oddlot.core.sum_tree import minibatch_size, samples_sent
from oddlot.core.tasks import Facts, Task, TaskLoss
from oddlot.machines.machine import Link


@dataclass(slots=True, eq=False)
class TaskExecution:
    """A task in the queue of a worker. All times are seconds on the virtual clock."""

    task: Task
    weights: Any
    ready: float
    """Arrival time of its weights and samples."""
    compute: float
    """Seconds for the remaining samples at the current pace."""
    weight_bytes: int
    """Bytes of weights that had to be sent."""
    data_bytes: int
    """Bytes of samples that had to be sent."""
    link_factor: float
    """Duration of its transfers relative to their mean."""
    begin: float = 0.0
    samples_before: float = 0.0
    """Samples computed at an earlier pace."""
    seconds_before: float = 0.0
    """Seconds spent on `samples_before`."""
    end: float = 0.0
    entry: int = 0
    """Number of the valid entry in the event queue. Older entries are ignored. 0: none is valid."""
    unwanted: bool = False
    """Whether its update will not count and need not be computed."""
    stop_at: float = inf
    """Arrival time of the request to stop at the worker."""
    min_samples: int = 0
    """Samples that are computed before the request takes effect."""
    samples: int = 0
    """Number of samples that are computed at the end."""
    is_partial: bool = False
    """Whether the task ends before all of its samples are computed."""

    def received_bytes(self, now: float) -> tuple[int, int]:
        """Return the bytes of weights and samples that have arrived."""
        return (self.weight_bytes, self.data_bytes) if self.ready <= now else (0, 0)

    @property
    def has_update(self) -> bool:
        """Whether a complete or partial update is sent at the end. False: the task was cancelled."""
        return self.samples > 0 and not (self.is_partial and self.unwanted)

    def samples_at(self, now: float) -> float:
        """Return the number of samples that are computed at time `now`, as a float."""
        samples = samples_in(self.task.spans)
        return self.samples_before + max(0.0, now - self.begin) / self.compute * (
            samples - self.samples_before
        )

    def set_end(self, stop_at: float, batch: int) -> None:
        """Set the end: after all samples, or after the minibatch that runs when the request to stop arrives."""
        samples = samples_in(self.task.spans)
        self.end, self.samples, self.is_partial = self.begin + self.compute, samples, False
        if stop_at < self.end:
            kind, before = self.task.kind, self.samples_before
            cuts = minibatch_cuts(samples, minibatch_size(kind, batch))
            begun = max(self.samples_at(stop_at), self.min_samples)
            done = next((cut for cut in cuts if cut >= begun), samples)
            self.samples = samples_sent(kind, done, samples)
            self.is_partial = self.samples < samples
            self.end = self.begin + self.compute * (done - before) / (samples - before)

    def change_pace(self, now: float, ratio: float) -> None:
        """Multiply the time of the remaining samples by `ratio`."""
        if self.begin < now:
            self.seconds_before += now - self.begin
            self.samples_before = self.samples_at(now)
            self.compute -= now - self.begin
            self.begin = self.ready = now
        self.compute *= ratio

    def cancelled(self, now: float) -> Cancelled:
        """Return the event for the end of the task without an update."""
        return Cancelled(self.task.id, self.task.node, *self.received_bytes(now))

    @property
    def computed_task(self) -> Task:
        """Return the task, reduced to its computed samples."""
        if not self.is_partial:
            return self.task
        return replace(self.task, spans=split(self.task.spans, self.samples)[0])

    def facts(self, now: float, link: Link, loss: TaskLoss, bytes_up: int) -> Facts:
        """Return the facts of the update that arrives at time `now`."""
        seconds = {
            "down": self.link_factor * link.seconds(self.weight_bytes + self.data_bytes),
            "load": 0.0,
            "compute": self.seconds_before + self.end - self.begin,
            "up": now - self.end,
        }
        return Facts(
            id=self.task.id,
            sender=self.task.node,
            based_on=self.task.version,
            samples=self.samples,
            kind=self.task.kind,
            loss=loss.mean,
            weight=loss.weight,
            losses=loss.others,
            seconds=seconds,
            bytes_down=self.weight_bytes,
            bytes_up=bytes_up,
            bytes_data=self.data_bytes,
        )
