"""The schedule of faults: at given times and versions, at fixed intervals, and at random times."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from math import floor, inf
from random import Random

from oddlot.core.random_streams import stream
from oddlot.faults.plan import Chaos, Fault


@dataclass(frozen=True, eq=False)
class PlannedFault:
    """A fault with its own random streams. Adding or removing a fault does not change the times of others."""

    name: str
    fault: Fault
    times: Random
    targets: Random


def planned_faults(chaos: Chaos, resumes: int) -> list[PlannedFault]:
    """Return the faults of a plan, with random streams that depend on the number of `resumes`."""

    def streams(name: str) -> tuple[Random, Random]:
        # Changing the name of a stream would change its random numbers.
        times, targets = (
            stream(chaos.seed, f"{what} of {name}, life {resumes}") for what in ("times", "victims")
        )
        return times, targets

    return [PlannedFault(name, fault, *streams(name)) for name, fault in chaos.named()]


class FaultSchedule:
    """A heap of planned calls by time, and the faults that are due at versions."""

    def __init__(self, clock: Callable[[], float], inject: Callable[[PlannedFault], None]) -> None:
        self.clock, self.inject = clock, inject
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.entries = 0
        self.pending_messages = 0
        """Number of entries that may cause a message even if no worker computes: late updates, ends of faults."""
        self.by_version: list[tuple[int, int, PlannedFault]] = []

    @property
    def next_time(self) -> float:
        """Time of the next entry; infinity if there is none."""
        return self.events[0][0] if self.events else inf

    def at(self, time: float, happen: Callable[[], None], brings_message: bool = False) -> None:
        """Call `happen` at a time. `brings_message` is whether it may cause a message."""
        self.entries += 1
        self.pending_messages += brings_message

        def happens() -> None:
            self.pending_messages -= brings_message
            happen()

        heappush(self.events, (time, self.entries, happens))

    def run_next(self) -> None:
        """Remove and call the next entry."""
        heappop(self.events)[2]()

    def run_versions(self, version: int) -> None:
        """Inject the faults that are due at this version or an earlier one."""
        while self.by_version and -self.by_version[-1][0] <= version:
            self.inject(self.by_version.pop()[2])

    def plan(self, place: int, planned: PlannedFault, done: int) -> None:
        """Plan a fault, number `place` of its plan, without its first `done` times."""
        fault = planned.fault
        for time in sorted(fault.at_seconds)[done:]:
            self.at(time, partial(self.inject, planned))
        self.by_version += [(-version, -place, planned) for version in sorted(fault.at_versions)[done:]]
        self.by_version.sort(key=lambda entry: entry[:2])
        if not fault.is_once:
            self._plan_next(planned)

    def _plan_next(self, planned: PlannedFault) -> None:
        """Plan the next time of a repeated fault."""
        fault, now = planned.fault, self.clock()
        if fault.every_seconds is None:
            time = now + planned.times.expovariate((fault.per_hour or 1.0) / 3600)
        else:  # multiples on the run's clock, which a resume continues
            time = fault.every_seconds * (floor(now / fault.every_seconds * (1 + 1e-12)) + 1)
        self.at(time, partial(self._repeat, planned))

    def _repeat(self, planned: PlannedFault) -> None:
        self._plan_next(planned)
        self.inject(planned)
