"""Sizing rules: numbers of workers and hub servers, and the models and networks that a hub pays for. Source: Zou et
al., "Distributed Training Large-Scale Deep Architectures" (ADMA 2017), lemmas 1 and 2.
"""

from dataclasses import dataclass
from math import ceil, floor, inf

from oddlot.core.support.validation import AboveZero, AtLeastOne, FromZeroBelowOne, check_settings


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """The inputs of the sizing rules, for tasks that take equally long."""

    compute_seconds: AboveZero
    """Seconds of a task's computation on one worker."""
    model_bytes: AtLeastOne
    """Bytes of the model, equal to the bytes of an update."""
    hub_bytes_per_second: AboveZero
    """Bandwidth of a hub server, in bytes per second, shared by all workers."""
    workers: AtLeastOne = 1
    """Number of workers."""
    efficiency: FromZeroBelowOne = 0.8
    """Wanted share of the workers' time that is computation."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def transfer_seconds(self) -> float:
        """Return the seconds that one server needs to send the model to a worker and to receive its update."""
        return 2 * self.model_bytes / self.hub_bytes_per_second

    @property
    def hub_servers(self) -> int:
        """Return the number of servers that hide transfers behind computation (lemma 2)."""
        return max(1, ceil(self.transfer_seconds * self.workers / self.compute_seconds))

    @property
    def most_workers(self) -> int:
        """Return the number of workers of one server at the wanted efficiency.

        The server is busy for `transfer_seconds` per task, and workers compute and transfer in turn. Each then computes
        `efficiency` of the time as long as the queue at the server is short.
        """
        longest = self.compute_seconds / self.efficiency if self.efficiency else inf
        return (
            0
            if longest < self.compute_seconds + self.transfer_seconds
            else floor(longest / self.transfer_seconds)
        )

    @property
    def largest_model_bytes(self) -> int:
        """Return the size of the largest model that lets these workers reach the efficiency with one server."""
        return floor(self._transfer_limit * self.hub_bytes_per_second / 2)

    @property
    def least_bytes_per_second(self) -> float:
        """Return the smallest bandwidth of one server that lets these workers reach the efficiency with this model."""
        return 2 * self.model_bytes / self._transfer_limit

    @property
    def _transfer_limit(self) -> float:
        """Return the largest `transfer_seconds` that lets the workers reach the efficiency."""
        longest = self.compute_seconds / self.efficiency if self.efficiency else inf
        return min(longest - self.compute_seconds, longest / self.workers)


def parallel_efficiency(workers: int, overhead: float) -> float:
    """Return the speedup per worker if fixed work is divided among workers, and overhead is not (lemma 1).

    Args:
        workers: Number of workers.
        overhead: Seconds of a step that are not hidden and not divided, relative to the computation on one worker.
    """
    return (1 + overhead) / (1 + workers * overhead)


def workers_at(efficiency: float, overhead: float) -> int:
    """Return the largest number of workers with at least this parallel efficiency (lemma 1, solved for workers)."""
    return floor(((1 + overhead) / efficiency - 1) / overhead + 1e-9)  # an integer may be rounded down
