"""Four local processes, one of them five times slower, with real gradients and real waiting times."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.ddp import Group
from benchmarks.report import Size, median_and_range, show
from benchmarks.stragglers.merged import merged_a_second
from oddlot import (
    SGD,
    AdaptiveLoad,
    BackupTasks,
    FastestK,
    Local,
    LocalSGD,
    Machine,
    ProportionalLoad,
    Quorum,
    Run,
    Strategy,
    Synchronous,
    fit,
)
from oddlot.workloads.digits import digits

PACE, SLOWER, BATCH, ACCURACY = 0.002, 5.0, 32, 0.95
"""Seconds per sample, slowdown of the last process, samples of a minibatch, and an accuracy that all policies reach."""
PACES = (PACE, PACE, PACE, PACE * SLOWER)
JOINT = "joint, not told anything"
POLICIES: dict[str, Callable[[], Strategy]] = {
    "synchronous": Synchronous,
    JOINT: AdaptiveLoad,
    "loads in proportion": lambda: ProportionalLoad(Synchronous()),
    "backup tasks": lambda: BackupTasks(Synchronous()),
    "quorum": lambda: Quorum(LocalSGD(4, SGD(0.7, 0.9, nesterov=True))),
    "synchronous, a batch for all": lambda: Synchronous(BATCH // 4),
    "loads in proportion, a batch for all": lambda: ProportionalLoad(Synchronous(BATCH // 4)),
    "k = 3, a batch for three": lambda: FastestK(k=3, samples=BATCH // 3),
}
"""Policies. The last three have fixed rounds of about one batch, like the rounds of the joint policy."""


def measure(size: Size) -> dict[str, list[float]]:
    """Print both tables, and return their figures."""
    paces = size.pick([pace / 10 for pace in PACES[2:]], PACES, PACES)
    return goodput(size, paces) | soonest(size, paces)


def place(paces: Sequence[float]) -> Local:
    """Return an engine with a process per pace, each with one thread."""
    return Local(
        len(paces), threads=1, as_if=tuple(Machine(f"m{place}", pace) for place, pace in enumerate(paces))
    )


def goodput(size: Size, paces: Sequence[float]) -> dict[str, list[float]]:
    """Return the goodput: samples per second / samples per second of four processes that never wait."""
    able, times = sum(1 / pace for pace in paces), range(size.pick(1, 1, 3))
    found: dict[str, list[float]] = {
        "synchronous": [],
        "loads in proportion": [],
        "DistributedDataParallel": [],
    }
    steps, epochs = size.pick((2, 1), (8, 8), (40, 16))
    for seed in times:
        each = Synchronous(2 * BATCH)
        found["synchronous"].append(_merged(each, seed, epochs, paces) / able)
        found["loads in proportion"].append(_merged(ProportionalLoad(each), seed, epochs, paces) / able)
        group, waits = Group(_model, len(paces)), [2 * BATCH * pace for pace in paces]
        found["DistributedDataParallel"].append(
            len(paces) * 2 * BATCH * steps / able / group.seconds(steps, waits)
        )
        group.close()
    rows = [[name, median_and_range(shares, 3)] for name, shares in found.items()]
    show(
        f"goodput of four processes, the last {SLOWER:g} times slower, {len(times)} runs",
        ("", "goodput"),
        rows,
    )
    return {
        "real_goodput_proportional": found["loads in proportion"],
        "real_goodput_synchronous": found["synchronous"],
        "ddp_goodput_slow": found["DistributedDataParallel"],
    }


def _merged(strategy: Strategy, seed: int, epochs: int, paces: Sequence[float]) -> float:
    """Return the merged samples per second."""
    on, until = place(paces), f"epochs>={epochs}"
    run = fit(digits(batch_size=BATCH), strategy, on, until=until, seed=seed, evaluate_every="100 epochs")
    return merged_a_second(run)


def _model() -> tuple[nn.Module, Any, Any, int]:
    """Return model, inputs, targets and twice the batch size."""
    job = digits(batch_size=BATCH)
    inputs, targets = (torch.as_tensor(part) for part in job.train_data)
    return job.model(), inputs, targets, 2 * BATCH


def soonest(size: Size, paces: Sequence[float]) -> dict[str, list[float]]:
    """Return ratios of the seconds to the accuracy, by seed."""
    seeds, accuracy = range(size.pick(1, 1, 5)), size.pick(0.2, ACCURACY, ACCURACY)
    rows, seconds = list[list[str]](), dict[str, list[float]]()
    for seed in seeds:
        for name in list(POLICIES)[: size.pick(2, 2, None)]:
            seconds.setdefault(name, []).append(
                _until(POLICIES[name](), accuracy, seed, paces).summary["seconds"]
            )
            print(f"{name}, seed {seed}: {seconds[name][-1]:.1f} s", flush=True)
    for name, taken in seconds.items():
        ratios = [own / theirs for own, theirs in zip(taken, seconds["synchronous"], strict=True)]
        rows.append([name, median_and_range(taken, 1), median_and_range(ratios, 2)])
    show(f"until an accuracy of {accuracy}, {len(seeds)} seeds", ("", "seconds", "of synchronous's"), rows)
    joint, base = seconds.pop(JOINT), seconds.pop("synchronous")
    figures = {"real_joint_over_synchronous": _ratios(joint, base)}
    if seconds:
        figures["real_joint_over_best_rival"] = _ratios(joint, min(seconds.values(), key=median))
    return figures


def _ratios(own: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(own, others, strict=True)]


def _until(strategy: Strategy, accuracy: float, seed: int, paces: Sequence[float]) -> Run:
    goal = f"accuracy>={accuracy} or epochs>=60"
    run = fit(
        digits(batch_size=BATCH), strategy, place(paces), until=goal, seed=seed, evaluate_every="0.25 epochs"
    )
    if "accuracy" not in run.ended:
        raise RuntimeError(f"{strategy!r} ended with {run.ended}")
    return run
