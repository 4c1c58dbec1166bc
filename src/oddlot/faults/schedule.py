"""When faults are injected: at their times and versions, in intervals, and by chance."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop
from math import floor
from random import Random

from oddlot.core.support.event_queue import EventQueue
from oddlot.core.support.random_streams import stream
from oddlot.faults.plan import Chaos, Fault


@dataclass(frozen=True, eq=False)
class PlannedFault:
    """A fault with its own random streams: adding or removing a fault does not change the times of others."""

    name: str
    fault: Fault
    times: Random
    targets: Random


def planned_faults(chaos: Chaos, resumes: int) -> list[PlannedFault]:
    """Return the faults of a plan. Each process of a run that was resumed `resumes` times has its own streams."""

    def streams(name: str) -> tuple[Random, Random]:
        # The words in a stream's name decide its numbers: they stay as they are.
        times, targets = (
            stream(chaos.seed, f"{what} of {name}, life {resumes}") for what in ("times", "victims")
        )
        return times, targets

    return [PlannedFault(name, fault, *streams(name)) for name, fault in chaos.named()]


class FaultSchedule(EventQueue[None]):
    """A queue of planned faults, by time and by version."""

    def __init__(self, clock: Callable[[], float], inject: Callable[[PlannedFault], None]) -> None:
        super().__init__()
        self.clock, self.inject = clock, inject
        self.pending_messages = 0
        """Entries that may bring a message where nothing is computed: late updates, ends of faults."""
        self.by_version: list[tuple[int, int, PlannedFault]] = []

    def at(self, when: float, happen: Callable[[], None], brings_message: bool = False) -> None:
        """Plan what happens at a time."""
        self.pending_messages += brings_message

        def happens() -> None:
            self.pending_messages -= brings_message
            happen()

        super().at(when, happens)

    def run_next(self) -> None:
        """Do what is due next."""
        heappop(self.heap)[2]()

    def run_versions(self, version: int) -> None:
        """Inject the faults that are due at this version or earlier."""
        while self.by_version and -self.by_version[-1][0] <= version:
            self.inject(self.by_version.pop()[2])

    def plan(self, place: int, planned: PlannedFault, done: int) -> None:
        """Plan a fault, the `place`-th of its plan, without the times of it that are over."""
        fault = planned.fault
        for time in sorted(fault.at_seconds)[done:]:
            self.at(time, partial(self.inject, planned))
        self.by_version += [(-version, -place, planned) for version in sorted(fault.at_versions)[done:]]
        self.by_version.sort(key=lambda entry: entry[:2])
        if not fault.is_once:
            self._plan_next(planned)

    def _plan_next(self, planned: PlannedFault) -> None:
        """Plan the next time of a fault that happens again and again."""
        fault, now = planned.fault, self.clock()
        if fault.every_seconds is None:
            time = now + planned.times.expovariate((fault.per_hour or 1.0) / 3600)
        else:  # of the run's clock; a resume continues it
            time = fault.every_seconds * (floor(now / fault.every_seconds * (1 + 1e-12)) + 1)
        self.at(time, partial(self._repeat, planned))

    def _repeat(self, planned: PlannedFault) -> None:
        self._plan_next(planned)
        self.inject(planned)
