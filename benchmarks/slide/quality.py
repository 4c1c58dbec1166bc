"""P@1 over examples and over time on 30,000 outputs, each system at the best of the same settings."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.report import show
from benchmarks.slide.setting import BATCH, SHAPES, Set, generated
from benchmarks.slide.systems import Dense, Ours, Sampled, System, Tuned, precision
from oddlot.sparse import LSH, Clusters, Uniform

EXAMPLES, EVERY = 64_000, 12_800
PASSES, MORE = 2, 2
"""of dense training, and so many times more for the others, which may need them"""
GRID: dict[str, tuple[float, ...]] = {
    "lr": (3e-4, 1e-3, 3e-3),
    "input_lr": (1e-2, 3e-2, 1e-1),
    "input_std": (0.03, 0.1, 0.3),
}
"""what is tried for every system alike: one after the other, the others being the best so far"""
SYSTEMS: dict[str, Callable[[Tuned], System]] = {
    "dense": lambda tuned: Dense(*_size(), tuned),
    "sampled": lambda tuned: Sampled(*_size(), tuned),
    "uniform 250, in groups of 8": lambda tuned: Ours(*_size(), Uniform(250, group=8), tuned),
    "uniform 300": lambda tuned: Ours(*_size(), Uniform(300), tuned),
    "uniform 1000": lambda tuned: Ours(*_size(), Uniform(1000), tuned),
    "simhash 130 + 100": lambda tuned: Ours(*_size(), LSH(found=130, by_chance=100), tuned),
    "clusters": lambda tuned: Ours(*_size(), Clusters(), tuned),
}


class Point(NamedTuple):
    """Of a curve."""

    examples: int
    seconds: float
    p1: float


def _size() -> tuple[int, int]:
    return SHAPES["30k"].features, SHAPES["30k"].labels


def curve(system: System, data: Set, examples: int, every: int) -> list[Point]:
    """P@1 as it trains; the seconds are those of the steps alone."""
    points, seconds, done = list[Point](), 0.0, 0
    for x, y in data.batches(examples):
        began = time.perf_counter()
        system.step(x, y)
        seconds += time.perf_counter() - began
        done += len(x)
        if done % every == 0:
            points.append(Point(done, seconds, precision(system, data)))
    return points


def searched(name: str, data: Set, quick: bool) -> Tuned:
    """The setting that ends best after as many examples as the dense network is given; the same ones for all."""
    best, seen = FOUND[name] if quick else Tuned(), dict[Tuned, float]()
    for key, values in {} if quick else GRID.items():
        for tuned in (replace(best, **{key: value}) for value in values):
            if tuned not in seen:
                examples = EXAMPLES * PASSES
                seen[tuned] = curve(SYSTEMS[name](tuned), data, examples, examples // BATCH * BATCH)[-1].p1
        best = max(seen, key=lambda tuned: seen[tuned])
    print(f"{name}: {best}", *(f"{tuned}: {p1:.3f}" for tuned, p1 in seen.items()), sep="\n    ", flush=True)
    return best


_LOW = Tuned(3e-4, 3e-2, 0.03)
FOUND = {
    "sampled": Tuned(1e-3, 3e-2, 0.03),
    "uniform 250, in groups of 8": Tuned(3e-4, 3e-2, 0.1),
} | dict.fromkeys(("dense", "uniform 300", "uniform 1000", "simhash 130 + 100", "clusters"), _LOW)
"""by a whole run, for `--quick`"""


def seconds_to(points: Sequence[Point], p1: float) -> float | None:
    """When it was as good, between the points; None if it never was."""
    before = Point(0, 0.0, 0.0)
    for point in points:
        if point.p1 >= p1:
            share = (p1 - before.p1) / (point.p1 - before.p1)
            return before.seconds + share * (point.seconds - before.seconds)
        before = point
    return None


def measure(quick: bool) -> dict[str, float]:
    """How much sooner clusters are as good as dense softmax less 1 point, and as sampled softmax at its best."""
    data, passes = generated("30k", EXAMPLES), 1 if quick else PASSES
    found = {name: searched(name, data, quick) for name in SYSTEMS}  # before anything is timed
    curves, rows = dict[str, list[Point]](), list[list[str]]()
    for name, make in SYSTEMS.items():
        examples = EXAMPLES * passes * (1 if name == "dense" else MORE)
        curves[name] = curve(make(found[name]), data, examples, EVERY)
        told = (f"{p.examples // 1000}K {p.seconds:.1f} s {p.p1:.3f}" for p in curves[name])
        print(f"{name}:", *told, flush=True)
    at = EXAMPLES * passes
    goal, rival = curves["dense"][-1].p1 - 0.01, max(point.p1 for point in curves["sampled"])
    for name, points in curves.items():
        same = next(point for point in points if point.examples >= at - EVERY and point.examples <= at)
        best = max(points, key=lambda point: point.p1)
        when = [seconds_to(points, goal), seconds_to(points, rival)]
        rows.append([
            name, f"{same.p1:.3f}", f"{same.seconds:.1f}", f"{best.p1:.3f}", f"{best.seconds:.1f}",
            *("never" if one is None else f"{one:.1f}" for one in when),
        ])  # fmt: skip
    columns = [
        "",
        f"P@1 at {at // 1000}K",
        "s",
        "best P@1",
        "s",
        f"s to {goal:.3f} (dense)",
        f"s to {rival:.3f} (sampled)",
    ]
    show("30,000 outputs: P@1 over examples and time", columns, rows)
    figures = {}
    for key, rival_name, p1 in (
        ("time_to_dense_quality_30k", "dense", goal),
        ("time_to_quality_over_sampled_30k", "sampled", rival),
    ):
        own, other = seconds_to(curves["clusters"], p1), seconds_to(curves[rival_name], p1)
        figures[key] = other / own if own and other else 0.0
    return figures
