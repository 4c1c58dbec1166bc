"""P@1 by examples and by time on 30,000 outputs. Each system has the best of the same settings."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from benchmarks.plots import save
from benchmarks.report import NOT_REACHED, Measured, Size, median_and_range, show
from benchmarks.slide.runs import Made, Point, best_of, ours, trained
from benchmarks.slide.setting import BATCH, Set, generated, shape_of
from benchmarks.slide.systems import Dense, Sampled, Tuned
from oddlot.report.svg_charts import Line
from oddlot.sparse import LSH, Clusters, Uniform, Unigram

PASS, SEARCHED, LARGE, SMALL = 64_000, 2 * 64_000, 256_000, BATCH
"""Examples of a pass, of the search runs, of the larger datasets, and of each of these in the smoke form."""
RATES = (1e-3, 3e-3)
"""Learning rates that are tried on the larger datasets."""
LENGTHS, SEEDS = (2, 3, 4, 5, 6, 8, 12, 16), 3
"""Passes of complete runs, and number of seeds. In each run all learning rates decay linearly to zero."""
GRID: dict[str, tuple[float, ...]] = {
    "lr": (5e-4, 1e-3, 2e-3, 3e-3, 5e-3),
    "input_lr": (3e-2, 5e-2, 8e-2),
    "input_std": (0.03, 0.1),
}
"""Values that are tried for every system, one setting at a time, with the best values so far of other settings."""
SYSTEMS: dict[str, Made] = {
    "dense": Dense,
    "sampled": Sampled,
    "sampled by frequency": partial(Sampled, frequency=0.8, fused=True),
    "uniform 400": ours(lambda: Uniform(400)),
    "uniform 1000": ours(lambda: Uniform(1000)),
    "unigram 400": ours(lambda: Unigram(400)),
    "simhash 200 + 200": ours(lambda: LSH(found=200, by_chance=200, frequency=0.0)),
    "clusters": ours(Clusters),
}


COMPARED, MANY = ("dense", "sampled", "sampled by frequency", "clusters"), "uniform 1000"
WARM = 1_024
"""Examples of a warm-up run. It compiles the kernels."""
FIT = {"dense": 3, "sampled": 6, "sampled by frequency": 6, "clusters": 8}
"""Number of lengths that fit into about the time of dense softmax for four passes. Other systems run five lengths."""


def search(size: Size, *names: str) -> None:
    """Print the setting with the best P@1 of every system, on held-out points."""
    data = generated(size, "30k", size.pick(SMALL, PASS, PASS))
    examples = size.pick(SMALL, SEARCHED, SEARCHED)
    for name, make in SYSTEMS.items():
        if names and name not in names:
            continue
        best, seen = Tuned(), dict[Tuned, float]()
        for key, values in GRID.items():
            for tuned in (replace(best, **{key: value}) for value in values):
                if tuned not in seen:
                    seen[tuned] = trained(make, tuned, data, examples).held
            best = max(seen, key=lambda tuned: seen[tuned])
        tried = (f"{tuned}: {p1:.3f}" for tuned, p1 in seen.items())
        print(f"{name}: {best}", *tried, sep="\n    ", flush=True)


FOUND = dict.fromkeys(SYSTEMS, Tuned(lr=1e-3)) | {
    "sampled": Tuned(input_std=0.1),
    "sampled by frequency": Tuned(lr=2e-3),
    "clusters": Tuned(lr=2e-3),
}
"""Results of the search."""


Figures = dict[str, Measured]
Ends = dict[str, list[list[Point]]]
"""End points of each system's runs, by seed, shortest run first."""


def seconds_to(points: Sequence[Point], p1: float) -> float | None:
    """Return the seconds of the shortest run that reaches `p1`, interpolated between the measured lengths, or None.

    The result is not extrapolated below the shortest run.
    """
    before = points[0]
    for point in points:
        if point is before and point.p1 >= p1:
            return point.seconds
        if point.p1 >= p1:
            share = (p1 - before.p1) / (point.p1 - before.p1)
            return before.seconds + share * (point.seconds - before.seconds)
        before = point
    return None


def paced(run: Sequence[Point]) -> list[Point]:
    """Return the points with seconds at the median pace of all lengths.

    This removes short slowdowns of the machine.
    """
    pace = median(point.seconds / point.examples for point in run)
    return [point._replace(seconds=pace * point.examples) for point in run]


def measure(size: Size, shapes: list[str]) -> Figures:
    """Measure P@1 over time with 30,000 outputs, and at equal examples with more outputs."""
    figures = Figures()
    if "30k" in shapes:
        figures |= over_time(size)
    for shape in (one for one in shapes if one != "30k"):
        figures |= large(size, shape)
    return figures


def over_time(size: Size) -> Figures:
    """Return the speedup of clusters to dense softmax's P@1 less 1 point, and to sampled softmax's best P@1.

    The runs take up to the time of dense softmax for four passes. Compared systems have three seeds, other systems one.
    """
    a_pass, seeds = size.pick(SMALL, PASS, PASS), size.pick(1, 1, SEEDS)
    data = generated(size, "30k", a_pass)
    ends: Ends = {name: [] for name in size.pick(SYSTEMS, COMPARED, SYSTEMS)}
    for seed in range(seeds):
        asked = COMPARED if seed else tuple(ends)
        for name in asked:
            ends[name].append([])
            trained(SYSTEMS[name], FOUND[name], data, size.pick(BATCH, WARM, WARM))
        for passes in LENGTHS:  # in turn, because a slowdown of the machine then affects all systems
            for name in asked:
                if passes in lengths_of(size, name):
                    ends[name][-1].append(trained(SYSTEMS[name], FOUND[name], data, passes * a_pass, seed))
        for name in asked:
            text_of = (f"{p.examples // 1000}K {p.seconds:.1f} s {p.p1:.3f}" for p in ends[name][-1])
            print(f"{name}, seed {seed}:", *text_of, flush=True)
    figures = compared("30,000 outputs", ends, "30k")
    draw(size, ends)
    at = LENGTHS[1] * a_pass
    own = [next(p.p1 for p in run if p.examples == at) for run in ends["clusters"]]
    same = [p1 - of_many(data, at, seed) for seed, p1 in enumerate(own)]
    print(f"clusters' P@1 less that of 1,000 rows by chance at {at:,} examples:", median_and_range(same))
    return figures | {"p1_over_uniform_1000_30k": [100 * one for one in same]}


def lengths_of(size: Size, name: str) -> Sequence[int]:
    """Return the passes of a system's runs. In the quick form, sampled softmax has only its two longest runs, because
    figures compare with its best precision."""
    every = LENGTHS[: FIT.get(name, 5)]
    return size.pick(LENGTHS[:2], every[-2:] if "sampled" in name else every, every)


def draw(size: Size, ends: Ends) -> None:
    """Plot the end points of runs, medians of the seeds, by examples and by seconds."""
    medians = {
        name: [
            (
                median(one.seconds for one in points),
                points[0].examples / 1e3,
                median(one.p1 for one in points),
            )
            for points in zip(*runs, strict=True)
        ]
        for name, runs in ends.items()
    }
    for at, (over, unit) in enumerate({"seconds": "seconds", "examples": "thousand examples"}.items()):
        drawn = [
            Line(name, [(end[at], end[2]) for end in points], number)
            for number, (name, points) in enumerate(medians.items())
        ]
        save(
            size,
            f"slide_{over}",
            f"30,000 outputs: P@1 at the end of runs over {over}",
            unit,
            "P@1",
            drawn,
        )


def of_many(data: Set, examples: int, seed: int) -> float:
    """Return P@1 of training with 1,000 uniform rows per example."""
    return trained(SYSTEMS[MANY], FOUND[MANY], data, examples, seed).p1


def large(size: Size, shape: str) -> dict[str, float]:
    """Return P@1 of clusters minus P@1 of 1,000 uniform rows, in points, after a pass with the better of two rates."""
    examples, rows, p1 = size.pick(SMALL, LARGE, LARGE), list[list[str]](), dict[str, float]()
    data = generated(size, shape, examples)
    for name in ("clusters", MANY):
        best, end = best_of((Tuned(lr) for lr in RATES), SYSTEMS[name], data, examples)
        p1[name] = end.p1
        rows.append([name, f"{best.lr:g}", f"{end.p1:.3f}", f"{end.seconds:.1f}"])
        print(*rows[-1], flush=True)
    show(
        f"{shape_of(size, shape).labels:,} outputs, {examples:,} examples once",
        ["", "rate", "P@1", "s"],
        rows,
    )
    return {f"p1_over_uniform_1000_{shape}": 100 * (p1["clusters"] - p1[MANY])}


def compared(title: str, ends: Ends, name: str) -> Figures:
    """Print the end points of all runs. Return the speedup of clusters to the P@1 of each rival, by seed."""
    rivals = {
        "dense": f"time_to_dense_quality_{name}",
        "sampled": f"time_to_quality_over_sampled_{name}",
        "sampled by frequency": f"time_to_quality_over_sampled_by_frequency_{name}",
    }
    goals = {rival: [max(point.p1 for point in run) for run in ends[rival]] for rival in rivals}
    goals["dense"] = [run[-1].p1 - 0.01 for run in ends["dense"]]
    rows, figures, longest = list[list[str]](), Figures(), ends["clusters"][0]
    for system, runs in ends.items():
        text_of = {
            points[
                0
            ].examples: f"{median_and_range([p.p1 for p in points])}, {median(p.seconds for p in points):.1f} s"
            for points in zip(*runs, strict=True)
        }
        cells = [text_of.get(point.examples, "") for point in longest]
        for rival, p1s in goals.items():
            when = [seconds_to(paced(run), p1) for run, p1 in zip(runs, p1s, strict=False)]
            theirs = [seconds_to(paced(run), p1) for run, p1 in zip(ends[rival], p1s, strict=True)]
            ratios = [
                their / own if own and their else -NOT_REACHED
                for own, their in zip(when, theirs, strict=False)
            ]
            cells.append(median_and_range(ratios, 2))
            if system == "clusters":
                figures[rivals[rival]] = ratios
        rows.append([system, *cells])
    columns = ["", *(f"{point.examples // 1000}K" for point in longest)]
    columns += [f"as soon as {rival} is at {median_and_range(p1s)}" for rival, p1s in goals.items()]
    show(f"{title}: P@1 at the end of runs of so many examples", columns, rows)
    return figures
