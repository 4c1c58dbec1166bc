"""Capacity models: the number of available machines over time, of the `count` machines that a zone requests.

A model is pure data. `moves(count, rng)` yields `(seconds, machine, comes)` in the order of time, with machines
numbered from 0: a machine becomes available or is preempted. Machines that are available at second 0 come first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from random import Random
from typing import Annotated

from oddlot.core.support.errors import InvalidValue
from oddlot.core.support.user_warnings import warn
from oddlot.core.support.validation import AboveZero, AtLeastOne, Must, NotNegative, check_settings
from oddlot.machines.time_series import Steps

Move = tuple[float, int, bool]
Moves = Iterator[Move]


@dataclass(frozen=True, slots=True)
class Always:
    """All requested machines are available all the time, as on demand."""

    def moves(self, count: int, rng: Random) -> Moves:
        """Yield the arrival of every machine at second 0."""
        return ((0.0, machine, True) for machine in range(count))


@dataclass(frozen=True, slots=True)
class Memoryless:
    """Each machine is preempted independently, after an exponentially distributed time, and returns later."""

    mean_seconds: AboveZero
    """Mean seconds from a machine's start to its preemption."""
    seconds_to_return: NotNegative = 0.0
    """Seconds from a preemption until the machine is available again."""

    def __post_init__(self) -> None:
        check_settings(self)

    def moves(self, count: int, rng: Random) -> Moves:
        """Yield arrivals and preemptions of every machine, without end."""
        agenda = [(0.0, machine, True) for machine in range(count)]
        while True:
            time, machine, comes = heappop(agenda)
            yield time, machine, comes
            stays = rng.expovariate(1 / self.mean_seconds) if comes else self.seconds_to_return
            heappush(agenda, (time + stays, machine, not comes))


@dataclass(frozen=True, slots=True)
class Pools:
    """Machines of one pool are preempted together, to model correlated preemptions.

    Machine i is in pool i mod `pools`. Each pool has preemption events at exponentially distributed intervals. At an
    event, each machine of the pool is preempted with probability `share`.

    Clouds reclaim capacity pool by pool: Bamboo (Thorpe et al., NSDI 2023), section 3.
    """

    pools: AtLeastOne
    """Number of pools."""
    mean_seconds: AboveZero
    """Mean seconds between two preemption events of a pool."""
    share: Annotated[float, Must("above 0, at most 1", lambda share: 0 < share <= 1)] = 1.0
    """Probability that an event preempts a machine of the pool, above 0 and at most 1."""
    seconds_to_return: NotNegative = 0.0
    """Seconds from an event until its preempted machines are available again."""

    def __post_init__(self) -> None:
        check_settings(self)

    def moves(self, count: int, rng: Random) -> Moves:
        """Yield arrivals and preemptions of the machines of each pool, without end."""
        here, pools = [True] * count, min(self.pools, count)  # pools without a machine have no events
        yield from ((0.0, machine, True) for machine in range(count))
        # (time, order, pool or -1, returning machines)
        agenda = [(rng.expovariate(1 / self.mean_seconds), pool, pool, list[int]()) for pool in range(pools)]
        heapify(agenda)
        order = pools
        while True:
            time, _, pool, returning = heappop(agenda)
            for machine in returning:
                here[machine] = True
                yield time, machine, True
            if pool < 0:
                continue
            going = [m for m in range(pool, count, pools) if here[m] and rng.random() < self.share]
            for machine in going:
                here[machine] = False
                yield time, machine, False
            heappush(agenda, (time + self.seconds_to_return, order, -1, going))
            heappush(agenda, (time + rng.expovariate(1 / self.mean_seconds), order + 1, pool, []))
            order += 2


@dataclass(frozen=True, slots=True)
class Alive:
    """A recorded trace sets the number of available machines, up to the requested number.

    Preempted machines are chosen at random. With `of`, the number of machines that was requested when the trace was
    recorded, available = round(value / of * count). With `of = 1`, a trace of one instance makes all machines
    available or none.
    """

    steps: Steps
    """Number of available machines over time."""
    of: AtLeastOne | None = None
    """Number of machines that was requested when the trace was recorded. If None, available = min(value, count)."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.of is not None and self.of < (most := max(self.steps.values)):
            raise InvalidValue(
                "of", self.of, f"at least {most:g}, the trace's largest number of machines", "Alive"
            )

    def moves(self, count: int, rng: Random) -> Moves:
        """Yield the arrivals and preemptions that follow the trace.

        Warn if a trace of one instance is not scaled to several machines.
        """
        if count > 1 and self.of is None and max(self.steps.values) == 1:
            message = (
                f"the trace has at most 1 machine, so at most 1 of {count:,} machines is available. Set `of` to the "
                "number that was requested when it was recorded (`of = 1` for one instance)"
            )
            warn(message, "trace_of_one", machines=count)
        return self._moves(count, rng)

    def _moves(self, count: int, rng: Random) -> Moves:
        here, away = list[int](), list(range(count - 1, -1, -1))

        def to(time: float, alive: float) -> Moves:
            wanted = min(count, round(alive if self.of is None else alive * count / self.of))
            while len(here) > wanted:
                place = rng.randrange(len(here))
                here[place], here[-1] = here[-1], here[place]
                away.append(here.pop())
                yield time, away[-1], False
            while len(here) < wanted:
                here.append(away.pop())
                yield time, here[-1], True

        yield from to(0.0, self.steps.at(0.0))
        idle = 0
        for time, alive in self.steps.changes():
            before = len(here)
            yield from to(time, alive)
            idle = 0 if len(here) != before else idle + 1
            # A trace that repeats and has no changes for this number of machines yields nothing more.
            if idle > len(self.steps.seconds):
                return


Capacity = Always | Memoryless | Pools | Alive
