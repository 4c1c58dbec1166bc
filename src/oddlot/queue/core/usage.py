"""Service that virtual clusters have received."""

from collections import Counter
from collections.abc import Mapping

from oddlot.queue.core.policy import Usage

HALF_LIFE_SECONDS = 7 * 86_400.0
"""Time after which a second of service counts half, as in Slurm's default."""


class UsageMeter:
    """Counts GPU time by virtual cluster. Older service counts less."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        self.seconds: dict[str, float] = {}
        self.units: Counter[str] = Counter()
        self.until = 0.0
        self.usage = Usage(self.seconds, dict(shares))

    def change(self, cluster: str, units: int, now: float) -> None:
        """Count units (GPUs or cores) that a cluster has taken, or with a negative number given back."""
        self.at(now)
        self.units[cluster] += units

    def at(self, now: float) -> Usage:
        """Return the usage at a time."""
        passed = now - self.until
        if passed > 0:
            self.until = now
            kept = 0.5 ** (passed / HALF_LIFE_SECONDS)
            for cluster in {**self.seconds, **self.units}:
                self.seconds[cluster] = self.seconds.get(cluster, 0.0) * kept + self.units[cluster] * passed
        return self.usage
