"""Samples and bytes of a run, summed over its tasks."""

from collections import Counter
from dataclasses import dataclass, field

from oddlot.core.events import TOO_LARGE, Resumed, UpdateRejected

WASTES = {
    "lost": "with their workers",
    "cancelled": "by the strategy",
    "late": "after their timeout, computed twice",
    "dropped": "too stale to merge",
    "invalid": "in updates with NaN or infinity",
    "rejected": "updates too large (max_update_ratio)",
    "gated": "in updates that a gate rejected (gates)",
    "resumed": "after the checkpoint, computed again",
    "unfinished": "in progress at the end",
}
"""Reasons why assigned samples were not merged, with descriptions."""


def rejection(event: UpdateRejected) -> str:
    """Return the key of `WASTES` for the samples of a rejected update."""
    if event.gate:
        return "gated"
    return "rejected" if event.code == TOO_LARGE else "invalid"


@dataclass(slots=True)
class SampleCounts:
    """Numbers of samples, by the outcome of their tasks."""

    assigned: int = 0
    """Samples of all started tasks, including work lost by a resume."""
    merged: int = 0
    returned: int = 0
    """Samples that were not computed because their task ended early."""
    skipped: int = 0
    """Samples that were given up, because their updates were invalid or their workers ended every time."""
    wasted: Counter[str] = field(default_factory=Counter)
    """Samples that were assigned and not merged, by reason (a key of `WASTES`). `skipped`: the next action skips
    them."""

    def skip(self, count: int) -> None:
        """Count `count` wasted samples as skipped instead."""
        self.skipped += count
        for reason in ("skipped", *WASTES):
            moved = min(count, self.wasted[reason])
            self.wasted[reason] -= moved
            count -= moved

    def lose(self, count: int) -> None:
        """Count merged samples as lost: lost peers of a mesh merged them, and the saved model does not include them."""
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
    """Bytes of samples that workers read, if the data are in shards."""
    bytes_wasted: int = 0
    """Bytes of all three kinds for tasks that were cancelled or late."""

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
        """Count the bytes of the lost work of a resume."""
        self.add(event.bytes_up_lost, event.bytes_down_lost, event.bytes_data_lost, wasted=False)
