"""P@1 over examples and over time on 30,000 outputs, each system at the best of the same settings."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from benchmarks.plots import save
from benchmarks.report import NOT_REACHED, Measured, Size, show, told
from benchmarks.slide.runs import Made, Point, best_of, ours, trained
from benchmarks.slide.setting import BATCH, Set, generated, shape_of
from benchmarks.slide.systems import Dense, Sampled, Tuned
from oddlot.report.svg_charts import Line
from oddlot.sparse import LSH, Clusters, Uniform, Unigram

PASS, SEARCHED, LARGE, SMALL = 64_000, 2 * 64_000, 256_000, BATCH
"""examples of a pass, those of the runs by which settings are searched, those of the larger sets, and each of these in
the smoke form"""
RATES = (1e-3, 3e-3)
"""tried on these"""
LENGTHS, SEEDS = (2, 3, 4, 5, 6, 8, 12, 16), 3
"""passes of whole runs, in each of which all learning rates fall linearly to zero"""
GRID: dict[str, tuple[float, ...]] = {
    "lr": (5e-4, 1e-3, 2e-3, 3e-3, 5e-3),
    "input_lr": (3e-2, 5e-2, 8e-2),
    "input_std": (0.03, 0.1),
}
"""what is tried for every system alike: one after the other, the others being the best so far"""
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
"""examples of a run before, in which kernels are compiled"""
FIT = {"dense": 3, "sampled": 6, "sampled by frequency": 6, "clusters": 8}
"""so many of the lengths fit into the time that dense softmax takes for four passes, or nearly; of the others, which
are not compared, five are run"""


def search(size: Size, *names: str) -> None:
    """Print the setting that ends best for every system, on points held back; the same are tried for all."""
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
"""by that search"""


Figures = dict[str, Measured]
Ends = dict[str, list[list[Point]]]
"""of every system, for every seed, how its runs ended, the shortest one first"""


def seconds_to(points: Sequence[Point], p1: float) -> float | None:
    """What the shortest run that ends as good takes, between those that were made; None if there is none. Of the
    shortest one of all it is not known how much sooner it might have been."""
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
    """The same with the seconds that its examples take at the median pace of all lengths: what slows the machine down
    for a minute is not the length's."""
    pace = median(point.seconds / point.examples for point in run)
    return [point._replace(seconds=pace * point.examples) for point in run]


def measure(size: Size, shapes: list[str]) -> Figures:
    """At 30,000 outputs over time, at more of them at equal examples."""
    figures = Figures()
    if "30k" in shapes:
        figures |= over_time(size)
    for shape in (one for one in shapes if one != "30k"):
        figures |= large(size, shape)
    return figures


def over_time(size: Size) -> Figures:
    """How much sooner clusters are as good as dense softmax less 1 point, and as sampled softmax at its best.

    Within the time that dense softmax takes for four passes; with the systems that are compared three times, with the
    others once.
    """
    a_pass, seeds = size.pick(SMALL, PASS, PASS), size.pick(1, 1, SEEDS)
    data = generated(size, "30k", a_pass)
    ends: Ends = {name: [] for name in size.pick(SYSTEMS, COMPARED, SYSTEMS)}
    for seed in range(seeds):
        asked = COMPARED if seed else tuple(ends)
        for name in asked:
            ends[name].append([])
            trained(SYSTEMS[name], FOUND[name], data, size.pick(BATCH, WARM, WARM))
        for passes in LENGTHS:  # in turn, so that whatever slows the machine down slows all of them
            for name in asked:
                if passes in lengths_of(size, name):
                    ends[name][-1].append(trained(SYSTEMS[name], FOUND[name], data, passes * a_pass, seed))
        for name in asked:
            told_of = (f"{p.examples // 1000}K {p.seconds:.1f} s {p.p1:.3f}" for p in ends[name][-1])
            print(f"{name}, seed {seed}:", *told_of, flush=True)
    figures = compared("30,000 outputs", ends, "30k")
    draw(size, ends)
    at = LENGTHS[1] * a_pass
    own = [next(p.p1 for p in run if p.examples == at) for run in ends["clusters"]]
    same = [p1 - of_many(data, at, seed) for seed, p1 in enumerate(own)]
    print(f"clusters' P@1 less that of 1,000 rows by chance at {at:,} examples:", told(same))
    return figures | {"p1_over_uniform_1000_30k": [100 * one for one in same]}


def lengths_of(size: Size, name: str) -> Sequence[int]:
    """Return the passes of a system's runs. The quick form leaves out shorter runs of sampled softmax, because figures
    compare with its best precision, at the end of the longest one."""
    every = LENGTHS[: FIT.get(name, 5)]
    return size.pick(LENGTHS[:2], every[-2:] if "sampled" in name else every, every)


def draw(size: Size, ends: Ends) -> None:
    """Two plots of how runs end, medians of the seeds: over what they have computed, and over how long it took."""
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
    """P@1 with 1,000 rows by chance for an example, after so many."""
    return trained(SYSTEMS[MANY], FOUND[MANY], data, examples, seed).p1


def large(size: Size, shape: str) -> dict[str, float]:
    """P@1 of clusters above that of 1,000 rows by chance, each at the better of two rates, after one pass over 256,000
    examples."""
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
    """A table of how runs ended; how much sooner clusters are there than dense softmax and sampled softmax, each at
    its pace in that seed, beside the same seed: the median."""
    rivals = {
        "dense": f"time_to_dense_quality_{name}",
        "sampled": f"time_to_quality_over_sampled_{name}",
        "sampled by frequency": f"time_to_quality_over_sampled_by_frequency_{name}",
    }
    goals = {rival: [max(point.p1 for point in run) for run in ends[rival]] for rival in rivals}
    goals["dense"] = [run[-1].p1 - 0.01 for run in ends["dense"]]
    rows, figures, longest = list[list[str]](), Figures(), ends["clusters"][0]
    for system, runs in ends.items():
        told_of = {
            points[0].examples: f"{told([p.p1 for p in points])}, {median(p.seconds for p in points):.1f} s"
            for points in zip(*runs, strict=True)
        }
        cells = [told_of.get(point.examples, "") for point in longest]
        for rival, p1s in goals.items():
            when = [seconds_to(paced(run), p1) for run, p1 in zip(runs, p1s, strict=False)]
            theirs = [seconds_to(paced(run), p1) for run, p1 in zip(ends[rival], p1s, strict=True)]
            ratios = [
                their / own if own and their else -NOT_REACHED
                for own, their in zip(when, theirs, strict=False)
            ]
            cells.append(told(ratios, 2))
            if system == "clusters":
                figures[rivals[rival]] = ratios
        rows.append([system, *cells])
    columns = ["", *(f"{point.examples // 1000}K" for point in longest)]
    columns += [f"as soon as {rival} is at {told(p1s)}" for rival, p1s in goals.items()]
    show(f"{title}: P@1 at the end of runs of so many examples", columns, rows)
    return figures
