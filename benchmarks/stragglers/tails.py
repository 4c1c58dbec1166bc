"""Adaptation of k and load compared with adaptation of k alone, with non-exponential times or unequal workers."""

from collections.abc import Sequence
from functools import partial
from statistics import median

from benchmarks.processes import in_processes
from benchmarks.report import Size, median_and_range, show
from benchmarks.stragglers.joint import COMMUNICATION, LOADS, RATE, until_goal
from benchmarks.stragglers.least_squares import LOAD, WORKERS, a_of
from oddlot import AdaptiveLoad, Machine
from oddlot.machines import Erlang, Exponential, Link, ShiftedExponential
from oddlot.machines.delay_models import Delay
from oddlot.strategies import ByError
from oddlot.timing.order_statistics import rounds_of
from oddlot.timing.response_times import Scattered

FLEETS: dict[str, tuple[Delay, int, float]] = {
    "Erlang of 4": (Erlang(4), 0, 1.0),
    "half of it always, half exponential": (ShiftedExponential(0.5), 0, 1.0),
    "exponential, 10 of 50 workers 5x slower": (Exponential(), 10, 5.0),
}
"""Distribution of computation times, number of slow workers, and their slowdown."""
POLICIES = ("k alone", "k and load")
MEASURES = ("seconds", "used", "rounds")
QUOTIENTS = dict(zip(MEASURES, ("time", "gradient", "iteration"), strict=True))


def measure(size: Size) -> dict[str, float]:
    """Print a table of all fleets, and return the largest quotients. The quick form skips it."""
    if size is Size.QUICK:
        return {}
    seeds = range(size.pick(1, 1, 10))
    fleets = list(FLEETS)[: size.pick(1, None, None)]
    asked = [(name, policy, seed) for name in fleets for policy in POLICIES for seed in seeds]
    found = dict(zip(asked, in_processes(partial(_run, size), asked), strict=True))
    rows, worst = list[list[str]](), dict[str, float]()
    for name in fleets:
        for policy in POLICIES:
            cells = [
                median_and_range([found[name, policy, seed][one] for seed in seeds], 0) for one in MEASURES
            ]
            rows.append([name, policy, *cells])
        quotients = {one: _quotient(found, name, one, seeds) for one in MEASURES}
        rows.append([name, "quotient", *(f"{value:.2f}" for value in quotients.values())])
        for one, value in quotients.items():
            key = f"tails_{QUOTIENTS[one]}_ratio_max"
            worst[key] = max(value, worst.get(key, 0.0))
    show("other times of computation, communication always 1 s", ("computation", "adapted", *MEASURES), rows)
    return worst


def _quotient(
    found: dict[tuple[str, str, int], dict[str, float]], name: str, one: str, seeds: Sequence[int]
) -> float:
    alone, both = ([found[name, policy, seed][one] for seed in seeds] for policy in POLICIES)
    return median(b / a for a, b in zip(alone, both, strict=True))


def _run(size: Size, asked: tuple[str, str, int]) -> dict[str, float]:
    """Run a policy that knows the mean times of rounds and the error."""
    name, policy, seed = asked
    delay, slow, by = FLEETS[name]
    paces = [COMMUNICATION / LOAD * (by if number < slow else 1.0) for number in range(WORKERS)]
    link = Link(latency_milliseconds=500 * COMMUNICATION)
    machines = [
        Machine(f"w{number}", pace, delay, link, stops_at_once=True) for number, pace in enumerate(paces)
    ]
    loads = LOADS if policy == "k and load" else [LOAD]
    table = rounds_of([Scattered(delay, pace, COMMUNICATION) for pace in paces], loads)
    return until_goal(size, AdaptiveLoad(table, ByError(a_of(RATE), "excess"), least=1), machines, seed)
