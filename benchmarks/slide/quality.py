"""P@1 over examples and over time on 30,000 outputs, each system at the best of the same settings."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.report import show
from benchmarks.slide.setting import SHAPES, Set, generated
from benchmarks.slide.systems import Dense, Ours, Sampled, System, Tuned, precision, train
from oddlot.sparse import LSH, Clusters, Uniform

PASS, SEARCHED = 64_000, 2 * 64_000
"""examples of a pass, and those of the runs by which settings are searched"""
LENGTHS = tuple(PASS * quarters // 4 for quarters in (2, 3, 4, 6, 8, 12, 16))
"""examples of whole runs, in each of which all learning rates fall linearly to zero"""
GRID: dict[str, tuple[float, ...]] = {
    "lr": (1e-3, 2e-3, 3e-3, 5e-3),
    "input_lr": (3e-2, 5e-2, 8e-2),
    "input_std": (0.03, 0.1),
}
"""what is tried for every system alike: one after the other, the others being the best so far"""
SYSTEMS: dict[str, Callable[[Tuned], System]] = {
    "dense": lambda tuned: Dense(*_size(), tuned),
    "sampled": lambda tuned: Sampled(*_size(), tuned),
    "uniform 400": lambda tuned: Ours(*_size(), Uniform(400), tuned),
    "uniform 1000": lambda tuned: Ours(*_size(), Uniform(1000), tuned),
    "simhash 200 + 200": lambda tuned: Ours(*_size(), LSH(found=200, by_chance=200), tuned),
    "clusters": lambda tuned: Ours(*_size(), Clusters(), tuned),
}


class Point(NamedTuple):
    """How a run ended."""

    examples: int
    seconds: float
    """of its steps"""
    p1: float


def _size() -> tuple[int, int]:
    return SHAPES["30k"].features, SHAPES["30k"].labels


def trained(system: System, data: Set, examples: int) -> Point:
    """A whole run."""
    return Point(examples, train(system, data, examples), precision(system, data))


def searched(name: str, data: Set, quick: bool) -> Tuned:
    """The setting that ends best; the same ones are tried for all."""
    best, seen = FOUND[name] if quick else Tuned(), dict[Tuned, float]()
    for key, values in {} if quick else GRID.items():
        for tuned in (replace(best, **{key: value}) for value in values):
            if tuned not in seen:
                seen[tuned] = trained(SYSTEMS[name](tuned), data, SEARCHED).p1
        best = max(seen, key=lambda tuned: seen[tuned])
    print(f"{name}: {best}", *(f"{tuned}: {p1:.3f}" for tuned, p1 in seen.items()), sep="\n    ", flush=True)
    return best


FOUND = (
    dict.fromkeys(SYSTEMS, Tuned(lr=1e-3))
    | dict.fromkeys(("sampled", "clusters"), Tuned())
    | {"simhash 200 + 200": Tuned(lr=2e-3)}
)
"""by a whole run, for `--quick`"""


def seconds_to(points: Sequence[Point], p1: float) -> float | None:
    """What the shortest run that ends as good takes, between those that were made; None if there is none."""
    before = Point(0, 0.0, 0.0)
    for point in points:
        if point.p1 >= p1:
            share = (p1 - before.p1) / (point.p1 - before.p1)
            return before.seconds + share * (point.seconds - before.seconds)
        before = point
    return None


def measure(quick: bool) -> dict[str, float]:
    """How much sooner clusters are as good as dense softmax less 1 point, and as sampled softmax at its best."""
    data, lengths = generated("30k", PASS), LENGTHS[2::2] if quick else LENGTHS
    found = {name: searched(name, data, quick) for name in SYSTEMS}  # before anything is timed
    ends = dict[str, list[Point]]()
    for name, make in SYSTEMS.items():
        ends[name] = [trained(make(found[name]), data, examples) for examples in lengths]
        told = (f"{p.examples // 1000}K {p.seconds:.1f} s {p.p1:.3f}" for p in ends[name])
        print(f"{name}:", *told, flush=True)
    goals = {
        "time_to_dense_quality_30k": ("dense", ends["dense"][-1].p1 - 0.01),
        "time_to_quality_over_sampled_30k": ("sampled", max(point.p1 for point in ends["sampled"])),
    }
    rows = []
    for name, points in ends.items():
        when = [seconds_to(points, p1) for _, p1 in goals.values()]
        rows.append([
            name, *(f"{point.p1:.3f}, {point.seconds:.1f} s" for point in points),
            *("never" if one is None else f"{one:.1f}" for one in when),
        ])  # fmt: skip
    columns = [
        "",
        *(f"{examples // 1000}K" for examples in lengths),
        *(f"s to {p1:.3f} ({rival})" for rival, p1 in goals.values()),
    ]
    show("30,000 outputs: P@1 at the end of runs of so many examples", columns, rows)
    figures = {}
    for key, (rival, p1) in goals.items():
        own, other = seconds_to(ends["clusters"], p1), seconds_to(ends[rival], p1)
        figures[key] = other / own if own and other else 0.0
    same = [next(p.p1 for p in ends[name] if p.examples == SEARCHED) for name in ("clusters", "uniform 1000")]
    return figures | {"p1_over_uniform_1000_30k": 100 * (same[0] - same[1])}
