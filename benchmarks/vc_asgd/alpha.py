"""What alpha does: the paper's 0.7, 0.95, 0.999 and e / (e + 1), over epochs and time, and with fewer shards.

Atre, Jha, Rao (ScaDL 2021): 0.7 is fast and then noisy, 0.999 slow, e / (e + 1) the best in the end. All tasks of an
epoch start from its snapshot, 10 slots, 50 shards.
"""

from benchmarks.plots import save
from benchmarks.report import show
from benchmarks.vc_asgd.setting import PLOTS, SHARDS, a_job, accuracy_at, clients, points, proved
from oddlot import VCASGD, Run, Simulated, fit
from oddlot.report.charts import Line

ALPHAS = (0.7, 0.95, 0.999, None)
SLOTS = 10


def runs(dataset: str, epochs: int, samples: int | None) -> dict[str, Run]:
    """One for each alpha, by its name."""
    job = a_job(dataset, samples)
    on = Simulated(clients(job, SLOTS), seed=1)
    found = {}
    for alpha in ALPHAS:
        strategy = VCASGD(alpha=alpha, deadline_seconds=3600)
        run = fit(job, strategy, on, until=f"epochs>={epochs}", shards=SHARDS)
        found["e/(e+1)" if alpha is None else f"{alpha}"] = proved(run, job)
    return found


def by_shards(epochs: int, samples: int) -> None:
    """The same alpha is another algorithm with other shards: what stays the same is (1 - alpha) S."""
    job, rows = a_job("fashion_mnist", samples), []
    for shards in (10, 50, 200):
        cells = []
        for alpha in (0.95, 1 - 2.5 / shards):
            strategy = VCASGD(alpha=alpha, deadline_seconds=3600)
            run = fit(
                job,
                strategy,
                Simulated(clients(job, SLOTS), seed=1),
                until=f"epochs>={epochs}",
                shards=shards,
            )
            cells.append(f"{run.accuracy:.4f}")
        rows.append([f"{shards}", *cells])
    columns = ["shards S", "alpha 0.95", "(1 - alpha) S = 2.5"]
    show(f"accuracy on {samples:,} samples of Fashion-MNIST after {epochs} epochs", columns, rows)


def measure(quick: bool) -> dict[str, float]:
    """Print the tables, save the plots; nothing of it is a key."""
    studies = (
        {"fashion_mnist": (6, 12_000)} if quick else {"fashion_mnist": (12, None), "cifar10": (10, None)}
    )
    for dataset, (epochs, samples) in studies.items():
        found = runs(dataset, epochs, samples)
        marks = [1, epochs // 4 + 1, epochs // 2, epochs]
        rows = [[name, *(f"{accuracy_at(run, mark):.4f}" for mark in marks)] for name, run in found.items()]
        show(f"accuracy on {dataset}, snapshots", ["alpha", *(f"epoch {mark}" for mark in marks)], rows)
        if not quick:
            for across, scale, name in (("epochs", 1.0, "epochs"), ("seconds", 1 / 3600, "hours")):
                drawn = [
                    Line(name, points(run, across, scale), n) for n, (name, run) in enumerate(found.items())
                ]
                save(
                    PLOTS / f"vc_asgd_alpha_{dataset}_{name}.svg",
                    f"{dataset}: alpha",
                    name,
                    "accuracy",
                    drawn,
                )
    by_shards(*((3, 6_000) if quick else (6, 20_000)))
    return {}
