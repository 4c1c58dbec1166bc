"""A strong store compared with an eventual store that may overwrite: time, accuracy, and saturation of the servers.

Atre, Jha, Rao (ScaDL 2021): an update takes 1.29 s with transactions, and 0.87 s without. A slot waits for its own
update, so n_s subtasks on S slots take n_s / S (t_e + u) without queues. A server is busy for u of every t_e / S
seconds.
"""

from statistics import mean
from typing import Any

from benchmarks.plots import save
from benchmarks.report import Size, show
from benchmarks.vc_asgd.setting import SHARDS, T_E, a_job, clients, proved
from oddlot import VCASGD, Machine, Simulated, fit
from oddlot.machines import Hub, Lognormal
from oddlot.planner.run_shape import RunShape
from oddlot.report.svg_charts import Line

STRONG = {servers: Hub(seconds_per_update=1.29, servers=servers) for servers in (1, 2, 5)}
EVENTUAL = {servers: Hub(seconds_per_update=0.87, servers=servers, overwrites=True) for servers in (1, 2, 5)}
SLOTS = 10


def summary(hub: Hub, slots: int, epochs: int, seed: int) -> dict[str, Any]:
    """Return the summary of a run without computation. Task times have a coefficient of variation of 0.1."""
    shards = max(SHARDS, 2 * slots)
    job = RunShape(samples=shards).job()
    fleet = [Machine(f"slot{slot}", T_E, delay=Lognormal(cv=0.1)) for slot in range(slots)]
    strategy = VCASGD(newest=True, deadline_seconds=3600)
    on = Simulated(fleet, seed=seed, computes=False, hub=hub)
    return fit(job, strategy, on, until=f"epochs>={epochs}", shards=shards, seed=seed, quiet=True).summary


def accuracies(
    hub: Hub, epochs: int, samples: int, shards: int, seeds: int, first: int
) -> tuple[list[float], list[float]]:
    """Return the accuracy of training, and the share of overwritten updates, by seed."""
    job = a_job("fashion_mnist", samples)
    found, lost = [], []
    for seed in range(first, first + seeds):
        on = Simulated(clients(job, SLOTS), seed=seed, hub=hub)
        strategy = VCASGD(newest=True, deadline_seconds=3600)
        run = proved(fit(job, strategy, on, until=f"epochs>={epochs}", shards=shards, seed=seed), job)
        found.append(run.accuracy or 0.0)
        lost.append(run.summary["overwritten"] / run.summary["updates"])
    return found, lost


def measure(size: Size, seed: int) -> dict[str, float]:
    """Print the table, and save the plot. Return no figures."""
    epochs, rows = size.pick(2, 40, 40), []
    how = size.pick((1, 100, 10, 1), (2, 6_000, SHARDS, 1), (8, 20_000, SHARDS, 3))
    for name, hubs in (("strong, 1.29 s", STRONG), ("eventual, 0.87 s", EVENTUAL)):
        for servers, hub in hubs.items():
            took = summary(hub, SLOTS, epochs, seed)["seconds"] / 3600
            derived = SHARDS * epochs / SLOTS * (T_E + hub.seconds_per_update) / 3600
            right, lost = accuracies(hub, *how, seed)
            rows.append(
                [
                    name,
                    f"{servers}",
                    f"{took:.3f}",
                    f"{derived:.3f}",
                    f"{mean(right):.4f}",
                    f"{100 * mean(lost):.1f} %",
                ]
            )
    columns = [
        "store",
        "servers",
        f"hours of {SHARDS * epochs:,} updates",
        "without queues",
        "accuracy",
        "overwritten",
    ]
    show("parameter servers, 10 slots", columns, rows)
    _saturation(size, seed)
    return {}


def _saturation(size: Size, seed: int) -> None:
    """Print and plot the updates per hour by number of slots."""
    slots = size.pick((20, 80), (20, 80, 160, 320), (10, 20, 40, 80, 120, 160, 240, 320, 480))
    stores = {f"strong, servers: {servers}": STRONG[servers] for servers in (1, 5)}
    stores |= {f"eventual, servers: {servers}": hub for servers, hub in EVENTUAL.items()}
    found = {name: [summary(hub, n, 2, seed) for n in slots] for name, hub in stores.items()}
    rates = {name: [3600 * one["updates"] / one["seconds"] for one in line] for name, line in found.items()}
    lost = {name: [one["overwritten"] / one["updates"] for one in line] for name, line in found.items()}
    for title, figures, shown in (
        ("updates an hour", rates, "{:,.0f}"),
        ("share overwritten", lost, "{:.1%}"),
    ):
        table = [[f"{n}", *(shown.format(line[i]) for line in figures.values())] for i, n in enumerate(slots)]
        show(title, ["slots", *figures], table)
    points = {name: list(zip(map(float, slots), rate, strict=True)) for name, rate in rates.items()}
    drawn = [Line(name, line, n) for n, (name, line) in enumerate(points.items())]
    save(size, "vc_asgd_servers", "where parameter servers saturate", "slots", "updates an hour", drawn)
