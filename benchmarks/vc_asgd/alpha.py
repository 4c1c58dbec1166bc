"""Effect of alpha: the paper's 0.7, 0.95, 0.999 and e / (e + 1), by epochs and time, and with other numbers of shards.

Atre, Jha, Rao (ScaDL 2021): 0.7 is fast and then noisy, 0.999 is slow, and e / (e + 1) is the best at the end. All
tasks of an epoch start from its first weights: the paper's mode, `newest=False`. There are 10 slots and 50 shards.
Clients use Adam at its default rate, with new moments for each task.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import mean

from benchmarks.plots import save
from benchmarks.report import Size, show
from benchmarks.vc_asgd.setting import SHARDS, a_job, accuracy_at, clients, once_above, points, proved
from oddlot import VCASGD, Adam, Job, Run, Simulated, fit
from oddlot.core.commands import Blend
from oddlot.core.events import Arrived
from oddlot.report.svg_charts import Line

ALPHAS = (0.7, 0.95, 0.999, None)
SLOTS, SEVERAL = 10, (10, 50, 200)
"""SEVERAL: numbers of shards that are compared."""
SLOW = ("slot0", "slot1")
"""Slow slots in the study of damping."""
NEAR = 0.05
"""Points of accuracy / 100 below the best, for a separate plot."""


def with_adam(dataset: str, samples: int | None) -> Job:
    """Return a job with the optimizer of the paper's clients."""
    return replace(a_job(dataset, samples), optimizer=Adam())


def runs(dataset: str, epochs: int, samples: int | None, shards: int, seed: int) -> dict[str, Run]:
    """Return a run for each alpha, by its name."""
    job = with_adam(dataset, samples)
    on = Simulated(clients(job, SLOTS), seed=seed + 1)
    found = {}
    for alpha in ALPHAS:
        strategy = VCASGD(alpha=alpha, newest=False, deadline_seconds=3600)
        run = fit(job, strategy, on, until=f"epochs>={epochs}", shards=shards, seed=seed)
        found["e/(e+1)" if alpha is None else f"{alpha}"] = proved(run, job)
    return found


def by_shards(epochs: int, samples: int, several: Sequence[int], seed: int) -> None:
    """Compare numbers of shards S at equal alpha, and at equal (1 - alpha) S."""
    job, rows = with_adam("fashion_mnist", samples), []
    for shards in several:
        cells = []
        for alpha in (0.95, 1 - 2.5 / shards):
            strategy = VCASGD(alpha=alpha, newest=False, deadline_seconds=3600)
            run = fit(
                job,
                strategy,
                Simulated(clients(job, SLOTS), seed=seed + 1),
                until=f"epochs>={epochs}",
                shards=shards,
                seed=seed,
            )
            cells.append(f"{proved(run, job).accuracy:.4f}")
        rows.append([f"{shards}", *cells])
    columns = ["shards S", "alpha 0.95", "(1 - alpha) S = 2.5"]
    show(f"accuracy on {samples:,} samples of Fashion-MNIST after {epochs} epochs", columns, rows)


def weight_of_slow(run: Run, shards: int) -> float:
    """Return the weight of the slow slots' updates at the end of an epoch, over their share of the samples."""
    weights, samples, seen = list[float](), list[float](), list[tuple[str, float, int]]()
    sizes = {r.event.update.id: r.event.update for r in run.records if isinstance(r.event, Arrived)}
    for record in run.records:
        for action in record.actions:
            if isinstance(action, Blend):
                ((update, share),) = action.shares.items()
                seen = [(node, before * (1 - share), count) for node, before, count in seen]
                seen.append((sizes[update].sender, share, sizes[update].samples))
                if len(seen) == shards:  # an epoch ends with a barrier
                    slow = [one for one in seen if one[0] in SLOW]
                    weights.append(sum(one[1] for one in slow) / sum(one[1] for one in seen))
                    samples.append(sum(one[2] for one in slow) / sum(one[2] for one in seen))
                    seen = []
    return sum(weights) / sum(samples)


def by_damping(epochs: int, samples: int, shards: int, seed: int) -> None:
    """Compare damping by staleness with two slow slots of ten. Without damping, the last updates count most."""
    job, rows = with_adam("fashion_mnist", samples), []
    fleet = [
        replace(one, seconds_per_sample=5 * one.seconds_per_sample) if one.name in SLOW else one
        for one in clients(job, SLOTS)
    ]
    for damping in (0.0, 0.25, 0.5, 1.0):
        strategy = VCASGD(alpha=0.9, newest=False, damping=damping, deadline_seconds=7200)
        on = Simulated(fleet, seed=seed + 1)
        run = fit(job, strategy, on, until=f"epochs>={epochs}", shards=shards, seed=seed)
        rows.append([f"{damping}", f"{weight_of_slow(proved(run, job), shards):.2f}", f"{run.accuracy:.4f}"])
    columns = ["damping", "weight of the slow over their samples", "accuracy"]
    show(
        f"two of ten slots five times slower, alpha 0.9, {epochs} epochs, {samples:,} samples", columns, rows
    )


def jumps(run: Run) -> float:
    """Return the mean change of accuracy between evaluations, in points, in the last half of the run."""
    values = [100 * right for _, right in points(run, "epochs")]
    return mean(abs(b - a) for a, b in pairwise(values[len(values) // 2 :]))


def draw(size: Size, dataset: str, found: dict[str, Run]) -> None:
    """Plot accuracy by epochs, by time, and near the best accuracy, where lines are otherwise too close."""
    for across, scale, unit in (("epochs", 1.0, "epochs"), ("seconds", 1 / 3600, "hours")):
        drawn = [Line(name, points(run, across, scale), n) for n, (name, run) in enumerate(found.items())]
        save(size, f"vc_asgd_alpha_{dataset}_{unit}", f"{dataset}: alpha", unit, "accuracy", drawn)
    drawn = [Line(name, points(run, "epochs"), n) for n, (name, run) in enumerate(found.items())]
    least = max(right for line in drawn for _, right in line.points) - NEAR
    near = [line._replace(points=once_above(line.points, least)) for line in drawn]
    title = f"{dataset}: alpha, within {100 * NEAR:.0f} points of the best"
    kept = [line for line in near if line.points]
    save(size, f"vc_asgd_alpha_{dataset}_end", title, "epochs", "accuracy", kept)


STUDIES: dict[Size, dict[str, tuple[int, int | None]]] = {
    Size.SMOKE: {"fashion_mnist": (3, 100)},
    Size.QUICK: {"fashion_mnist": (4, 6_000)},
    Size.FULL: {"fashion_mnist": (40, None), "cifar10": (25, None)},
}
"""Epochs and number of samples (None for all)."""


def measure(size: Size, seed: int) -> dict[str, float]:
    """Print the tables, and save the plots. Return no figures."""
    shards = size.pick(10, SHARDS, SHARDS)
    for dataset, (epochs, samples) in STUDIES[size].items():
        found = runs(dataset, epochs, samples, shards, seed)
        marks = [1, epochs // 4 + 1, epochs // 2, epochs]
        rows = [
            [name, *(f"{accuracy_at(run, mark):.4f}" for mark in marks), f"{jumps(run):.2f}"]
            for name, run in found.items()
        ]
        columns = ["alpha", *(f"epoch {mark}" for mark in marks), "jumps in the last half, points"]
        show(f"accuracy on {dataset}, snapshots", columns, rows)
        draw(size, dataset, found)
    few = size.pick((1, 100), (2, 6_000), (6, 20_000))
    by_shards(*few, size.pick((5, 10), SEVERAL, SEVERAL), seed)
    by_damping(*few, shards, seed)
    return {}
