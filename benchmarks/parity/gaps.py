"""Quality after equal samples against the plain loop, with 1 and 4 workers."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch

from benchmarks.parity.plain_loop import PlainLoop
from benchmarks.report import show
from oddlot import Asynchronous, Job, LocalSGD, Machine, Quorum, Simulated, Strategy, Synchronous, fit
from oddlot.core.optimizers import SGD
from oddlot.machines import Exponential

WORKERS = 4


@dataclass(frozen=True)
class Setting:
    """A strategy, and its best known settings. `best_of` are factors on the learning rate that are tried."""

    key: str
    strategy: Callable[[], Strategy]
    workers: int = WORKERS
    momentum: float | None = None
    """Momentum of a job with SGD. None: the job's."""
    keep_optimizer: bool = False
    best_of: tuple[float, ...] = (1.0,)


def _quorum() -> Strategy:
    return Quorum(Synchronous())


SETTINGS = (
    Setting("sync", Synchronous, workers=1),
    Setting("sync", Synchronous),
    Setting("async", Asynchronous, momentum=0.0, best_of=(0.5, 1.0, 2.0)),
    Setting("local", partial(LocalSGD, steps=4), keep_optimizer=True, best_of=(0.5, 1.0, 2.0)),
    Setting("quorum", _quorum, best_of=(0.5, 1.0, 2.0)),
)
"""Momentum 0 is better for `async` than 0.15, 0.5 and 0.9 (MNIST, 2 epochs): four workers have an implicit one."""


def gaps(
    name: str,
    job: Job,
    metric: str,
    epochs: int,
    seeds: Sequence[int],
    points: Callable[[float, float], float],
    settings: Sequence[Setting] = SETTINGS,
) -> dict[str, float]:
    """Print the metric of the plain loop and of each setting. Return the largest gap of each key.

    `points(plain, ours)` is the gap, positive if ours is worse. Each setting has its best learning rate, chosen with
    the first seed; gaps are between medians over the seeds.
    """
    ours = partial(_ours, job, metric, epochs)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        plain = list(pool.map(partial(_plain, job, metric, epochs), seeds))
        tries = [(setting, factor, seeds[0]) for setting in settings for factor in setting.best_of]
        tried = dict(zip(tries, pool.map(ours, *zip(*tries, strict=True)), strict=True))
        best = {
            setting: min(setting.best_of, key=lambda factor: points(0.0, tried[setting, factor, seeds[0]]))
            for setting in settings
        }
        others = [(setting, best[setting], seed) for setting in settings for seed in seeds[1:]]
        tried |= dict(zip(others, pool.map(ours, *zip(*others, strict=True)), strict=True)) if others else {}
    rows, found = [["plain loop", "1", "", _text(plain), ""]], dict[str, float]()
    for setting, factor in best.items():
        values = [tried[setting, factor, seed] for seed in seeds]
        gap = points(median(plain), median(values))
        rows.append([setting.key, str(setting.workers), f"{factor:g}", _text(values), f"{gap:.2f}"])
        found[setting.key] = max(gap, found.get(setting.key, gap))
    show(
        f"{metric} of {name} after {epochs} epochs, {len(seeds)} seeds, global batch {job.batch_size}",
        ["strategy", "workers", "rate x", metric, "gap"],
        rows,
    )
    return found


def _plain(job: Job, metric: str, epochs: int, seed: int) -> float:
    loop, threads = PlainLoop.of(job, seed), torch.get_num_threads()
    torch.set_num_threads(1)
    model = loop.train(epochs, seed)
    with torch.no_grad():
        parts = [model(torch.as_tensor(rows)) for rows in _cut(job.eval_data[0])]
    torch.set_num_threads(threads)
    outputs, targets = torch.cat(parts), torch.as_tensor(job.eval_data[1])
    found: Any = job.metrics[metric]
    if not hasattr(found, "update"):
        return float(found(outputs, targets))
    found.reset()
    found.update(outputs, targets)
    return float(found.compute())


def _cut(array: Any) -> list[Any]:
    return [array[start : start + 256] for start in range(0, len(array), 256)]


def _ours(job: Job, metric: str, epochs: int, setting: Setting, factor: float, seed: int) -> float:
    rule = job.optimizer
    changes: dict[str, Any] = {"lr": rule.lr * factor} if factor != 1 else {}
    if setting.momentum is not None and isinstance(rule, SGD):
        changes = {"lr": rule.lr * factor * (1 - setting.momentum) / (1 - rule.momentum) / WORKERS}
        changes["momentum"] = setting.momentum
    changed = replace(
        job,
        optimizer=replace(rule, **changes) if changes else rule,
        batch_size=job.batch_size // setting.workers,
        keep_optimizer=setting.keep_optimizer,
    )
    machines = [Machine(f"m{at}", 1e-3, delay=Exponential()) for at in range(setting.workers)]
    run = fit(
        changed,
        setting.strategy(),
        Simulated(machines),
        until=f"epochs>={epochs}",
        seed=seed,
        evaluate_every=f"{epochs} epochs",
        quiet=True,
    )
    return run.metrics[metric]


def _text(values: Sequence[float]) -> str:
    return f"{median(values):.4f} ({min(values):.4f} to {max(values):.4f})"
