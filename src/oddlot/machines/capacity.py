"""When a zone has machines: who comes and who goes, of `count` machines that are wanted there all the time.

A model is pure data; `moves(count, rng)` is the stream of what happens in the order of time, `(seconds, machine,
comes)`, with machines numbered from 0. It begins with those that are there at second 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from random import Random
from typing import Annotated

from oddlot.core.errors import InvalidValue
from oddlot.core.user_warnings import warn
from oddlot.core.validation import AboveZero, AtLeastOne, Must, NotNegative, check_settings
from oddlot.machines.time_series import Steps

Move = tuple[float, int, bool]
Moves = Iterator[Move]


@dataclass(frozen=True, slots=True)
class Always:
    """As many as are wanted, all the time: on demand."""

    def moves(self, count: int, rng: Random) -> Moves:
        """All come, nobody goes."""
        return ((0.0, machine, True) for machine in range(count))


@dataclass(frozen=True, slots=True)
class Memoryless:
    """Each machine is preempted on its own, after an exponential time, and is there again a while later."""

    mean_seconds: AboveZero
    seconds_to_return: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_settings(self)

    def moves(self, count: int, rng: Random) -> Moves:
        """Two moves after each other of each machine, without end."""
        agenda = [(0.0, machine, True) for machine in range(count)]
        while True:
            time, machine, comes = heappop(agenda)
            yield time, machine, comes
            stays = rng.expovariate(1 / self.mean_seconds) if comes else self.seconds_to_return
            heappush(agenda, (time + stays, machine, not comes))


@dataclass(frozen=True, slots=True)
class Pools:
    """Preemptions come together: machine i is of pool i mod `pools`; at memoryless times, each pool on its own, every
    machine of it goes with probability `share`, and all that went are there again `seconds_to_return` later.

    Clouds take capacity back pool by pool, so that losses are correlated: Bamboo (Thorpe et al., NSDI 2023), section 3.
    """

    pools: AtLeastOne
    mean_seconds: AboveZero
    """between two events of a pool"""
    share: Annotated[float, Must("above 0, at most 1", lambda share: 0 < share <= 1)] = 1.0
    seconds_to_return: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_settings(self)

    def moves(self, count: int, rng: Random) -> Moves:
        """Groups go and return, without end."""
        here, pools = [True] * count, min(self.pools, count)  # of more pools than machines some have none
        yield from ((0.0, machine, True) for machine in range(count))
        # (time, order, pool or -1, who returns)
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
    """As many machines as a trace had available. Those that go are drawn, those that come are new.

    The number is capped at the machines that are requested. Set `of` to the number that was requested when the trace
    was recorded, and the same share is available: with `of = 1`, a trace of one instance has all machines or none.
    """

    steps: Steps
    of: AtLeastOne | None = None
    """Machines requested when the trace was recorded; None takes its numbers as they are."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.of is not None and self.of < (most := max(self.steps.values)):
            raise InvalidValue("of", self.of, f"at least {most:g}, as many as were alive once")

    def moves(self, count: int, rng: Random) -> Moves:
        """What brings the number of those that are there to the trace's. Warns if a trace of one instance is not
        scaled to several machines."""
        if count > 1 and self.of is None and max(self.steps.values) == 1:
            told = (
                f"the trace counts 1 machine at most, so 1 of {count:,} machines is available at most: set `of` to the "
                "number that was requested when it was recorded (`of = 1` for one instance)"
            )
            warn(told, "trace_of_one", machines=count)
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
            # Over and over the same, as far as so many machines are concerned.
            if idle > len(self.steps.seconds):
                return


Capacity = Always | Memoryless | Pools | Alive
