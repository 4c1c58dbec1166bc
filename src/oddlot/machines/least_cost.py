"""The least cost of a job with a deadline in a spot zone, by hindsight: a bound for buying policies."""

from collections.abc import Iterator
from itertools import takewhile
from math import ceil
from random import Random

from oddlot.core.support.random_streams import stream
from oddlot.machines.market import Zone


def least_dollars(zone: Zone, machine_hours: float, deadline_hours: float, seed: int = 0) -> float:
    """Return a lower bound of the cost of `machine_hours` of work in a spot zone before a deadline.

    The bound knows when each machine will be available, and the prices. It pays for starts, but its machines always
    work, lose no task and need no overlap. It takes the cheapest hours: of spot machines from their start to their
    preemption, and of on-demand machines that run until the deadline. `seed` is the seed of the simulated run.
    """
    until, start = 3600 * deadline_hours, zone.offer.seconds_to_start
    stays = [*_stays(zone, until, stream(seed, f"zone {zone.name}"))]
    offers = [(_least_price(zone, begin, end), end - begin) for begin, end in stays]
    offers += [(zone.offer.dollars_per_hour, until)] * ceil(3600 * machine_hours / max(1.0, until - start))
    # The start of a machine makes an hour of work the more expensive, the shorter the machine works.
    useful = [(price * stay / (stay - start), stay - start) for price, stay in offers if stay > start]
    left, dollars = machine_hours, 0.0
    for price, seconds in sorted(useful):
        taken = min(left, seconds / 3600)
        left, dollars = left - taken, dollars + taken * price
    return dollars


def _stays(zone: Zone, until: float, rng: Random) -> Iterator[tuple[float, float]]:
    """Yield the first and last second of each time that a spot machine is available before `until`."""
    since = dict[int, float]()
    moves = zone.capacity.moves(zone.count, rng)
    for time, machine, comes in takewhile(lambda move: move[0] < until, moves):
        if comes:
            since[machine] = time
        elif machine in since:
            yield since.pop(machine), time
    yield from ((begin, until) for begin in since.values())


def _least_price(zone: Zone, begin: float, end: float) -> float:
    """Return the lowest price between two times."""
    later = takewhile(lambda change: change[0] < end, zone.prices.changes(begin))
    return min([zone.prices.at(begin), *(price for _, price in later)])
