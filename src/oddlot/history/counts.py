"""Samples and bytes of a run, summed over its tasks."""

from collections import Counter
from dataclasses import dataclass, field

from oddlot.core.events import TOO_LARGE, Refused, Resumed

WASTES = {
    "lost": "with their workers",
    "cancelled": "by the strategy",
    "late": "after their timeout, computed twice",
    "dropped": "too stale to merge",
    "invalid": "in updates with NaN or infinity",
    "rejected": "updates too large (max_update_ratio)",
    "resumed": "after the checkpoint, computed again",
    "unfinished": "in progress at the end",
}
"""Why samples were assigned and not merged."""


def rejection(event: Refused) -> str:
    """Return the key of `WASTES` for the samples of a rejected update."""
    return "rejected" if event.code == TOO_LARGE else "invalid"


@dataclass(slots=True)
class SampleCounts:
    """Samples of all tasks, by how the tasks ended."""

    assigned: int = 0
    """Samples of all started tasks, work lost by a resume included."""
    merged: int = 0
    returned: int = 0
    """Samples not computed when a task was ended early."""
    skipped: int = 0
    """Samples given up, because their numbers were bad or their workers ended every time."""
    wasted: Counter[str] = field(default_factory=Counter)
    """Samples assigned and not merged, by reason (a key of `WASTES`). `skipped`: the next action skips them."""

    def skip(self, count: int) -> None:
        """Count samples as skipped that were wasted before: by the worker that they ended or, third, whose update had
        bad numbers."""
        self.skipped += count
        for reason in ("skipped", *WASTES):
            moved = min(count, self.wasted[reason])
            self.wasted[reason] -= moved
            count -= moved

    def lose(self, count: int) -> None:
        """Count merged samples as lost: on a mesh, lost peers have merged them, and the saved model lacks that."""
        self.merged -= count
        self.wasted["lost"] += count

    @property
    def summary(self) -> dict[str, int | dict[str, int]]:
        """Return the counts under the names of a run's summary."""
        return {
            "samples_assigned": self.assigned,
            "samples_merged": self.merged,
            "samples_wasted": self.wasted.total(),
            "wasted": {reason: self.wasted[reason] for reason in WASTES if self.wasted[reason]},
            "samples_skipped": self.skipped,
            "samples_returned": self.returned,
        }


@dataclass(slots=True)
class Traffic:
    """Bytes between the hub and workers, as the workers' messages report them.

    Bytes sent for a task that was lost with its worker are unknown.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    """Bytes of weights."""
    bytes_data: int = 0
    """Bytes of samples brought to workers, if the data are in shards."""
    bytes_wasted: int = 0
    """Bytes of all three for tasks that were cancelled or answered too late."""

    @property
    def summary(self) -> dict[str, int]:
        """Return the counts under the names of a run's summary."""
        return {
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "bytes_data": self.bytes_data,
            "bytes_wasted": self.bytes_wasted,
        }

    def add(self, up: int, down: int, data: int, wasted: bool) -> None:
        """Count the bytes of one message."""
        self.bytes_up += up
        self.bytes_down += down
        self.bytes_data += data
        if wasted:
            self.bytes_wasted += up + down + data

    def resume(self, event: Resumed) -> None:
        """Count the bytes of the work that a resume lost."""
        self.add(event.bytes_up_lost, event.bytes_down_lost, event.bytes_data_lost, wasted=False)
