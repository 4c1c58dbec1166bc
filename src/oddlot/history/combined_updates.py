"""Updates that robust rules left out of merges, by machine, computed from a log."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oddlot.core.events import Combined
from oddlot.core.tasks import UpdateId, machine_of, node_of


@dataclass(slots=True)
class LeftOut:
    """The updates of one machine in merges by a robust rule."""

    merges: int = 0
    """Number of its updates."""
    unused: int = 0
    """Number of its updates that were not used at all."""
    share: float = 0.0
    """Share of its values that was left out, summed over its updates."""
    expected: float = 0.0
    """Mean share of all updates of the same merge, summed over its updates."""

    @property
    def summary(self) -> dict[str, float]:
        """Return the counts and the mean shares under the names of a run's summary."""
        return {
            "merges": self.merges,
            "unused": self.unused,
            "left_out": self.share / self.merges,
            "expected": self.expected / self.merges,
        }


@dataclass(slots=True)
class CombinedUpdates:
    """Merges by a robust rule, updated by each `Combined`."""

    merges: int = 0
    without_change: int = 0
    """Merges that did not use any update, because they had too few."""
    samples: int = 0
    """Merged samples of updates that were not used at all."""
    machines: dict[str, LeftOut] = field(default_factory=dict)

    def add(self, event: Combined, samples: Mapping[UpdateId, int]) -> None:
        """Count a merge. `samples` has the number of samples of its updates."""
        self.merges += 1
        self.without_change += all(share >= 1 for share in event.left_out.values())
        expected = sum(event.left_out.values()) / max(1, len(event.left_out))
        for update, share in event.left_out.items():
            machine = self.machines.setdefault(machine_of(node_of(update)), LeftOut())
            machine.merges += 1
            machine.share += share
            machine.expected += expected
            if share >= 1:
                machine.unused += 1
                self.samples += samples.get(update, 0)

    @property
    def summary(self) -> dict[str, Any]:
        """Return the figures under the names of a run's summary. Empty without such merges."""
        if not self.merges:
            return {}
        figures = {
            "merges": self.merges,
            "merges_without_change": self.without_change,
            "left_out_samples": self.samples,
            "machines": {name: machine.summary for name, machine in sorted(self.machines.items())},
        }
        return {"combined": figures}
