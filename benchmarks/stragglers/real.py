"""Four processes of this machine, one of which is five times slower: gradients are real, and so is the waiting."""

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.ddp import Group
from benchmarks.report import show, told
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
from oddlot.tasks.digits import digits

PACE, SLOWER, BATCH, ACCURACY = 0.002, 5.0, 32, 0.95
"""seconds for a sample, times by which the last one is slower, samples of a minibatch; reached by all"""
PACES = (PACE, PACE, PACE, PACE * SLOWER)
POLICIES: dict[str, Callable[[], Strategy]] = {
    "synchronous": Synchronous,
    "joint, not told anything": AdaptiveLoad,
    "loads in proportion": lambda: ProportionalLoad(Synchronous()),
    "backup tasks": lambda: BackupTasks(Synchronous()),
    "quorum": lambda: Quorum(LocalSGD(4, SGD(0.7, 0.9, nesterov=True))),
    "synchronous, a batch for all": lambda: Synchronous(BATCH // 4),
    "loads in proportion, a batch for all": lambda: ProportionalLoad(Synchronous(BATCH // 4)),
    "k = 3, a batch for three": lambda: FastestK(k=3, samples=BATCH // 3),
}
"""the last three: fixed rounds of about one batch, as small as those of the joint policy"""


def measure(quick: bool) -> dict[str, float]:
    """Both tables."""
    return goodput(quick) | soonest(quick)


def place() -> Local:
    """The processes, one thread each."""
    return Local(4, threads=1, as_if=tuple(Machine(f"m{place}", pace) for place, pace in enumerate(PACES)))


def goodput(quick: bool) -> dict[str, float]:
    """Samples over what the four could do if none ever waited for another."""
    able, times = sum(1 / pace for pace in PACES), range(1 if quick else 3)
    found: dict[str, list[float]] = {
        "synchronous": [],
        "loads in proportion": [],
        "DistributedDataParallel": [],
    }
    steps = 8 if quick else 40
    for seed in times:
        found["synchronous"].append(_merged(Synchronous(2 * BATCH), seed, quick) / able)
        found["loads in proportion"].append(
            _merged(ProportionalLoad(Synchronous(2 * BATCH)), seed, quick) / able
        )
        group = Group(_model, [2 * BATCH * pace for pace in PACES])
        found["DistributedDataParallel"].append(4 * 2 * BATCH * steps / able / group.seconds(steps))
        group.close()
    rows = [[name, told(shares, 3)] for name, shares in found.items()]
    show(
        f"goodput of four processes, the last {SLOWER:g} times slower, {len(times)} runs",
        ("", "goodput"),
        rows,
    )
    return {
        "real_goodput_proportional": median(found["loads in proportion"]),
        "real_goodput_synchronous": median(found["synchronous"]),
        "ddp_goodput_slow": median(found["DistributedDataParallel"]),
    }


def _merged(strategy: Strategy, seed: int, quick: bool) -> float:
    """Samples a second."""
    until = f"epochs>={8 if quick else 16}"
    run = fit(digits(batch=BATCH), strategy, place(), until=until, seed=seed, evaluate_every="100 epochs")
    return merged_a_second(run)


def _model() -> tuple[nn.Module, Any, Any, int]:
    """With twice the batch."""
    job = digits(batch=BATCH)
    inputs, targets = (torch.as_tensor(part) for part in job.data)
    return job.model(), inputs, targets, 2 * BATCH


def soonest(quick: bool) -> dict[str, float]:
    """Seconds until the accuracy, each seed of a policy beside the same one of the others."""
    seeds, rows, seconds = range(1 if quick else 5), list[list[str]](), dict[str, list[float]]()
    for seed in seeds:
        for name, make in POLICIES.items():
            seconds.setdefault(name, []).append(_until(make(), seed).summary["seconds"])
            print(f"{name}, seed {seed}: {seconds[name][-1]:.1f} s", flush=True)
    for name, taken in seconds.items():
        ratios = [own / theirs for own, theirs in zip(taken, seconds["synchronous"], strict=True)]
        rows.append([name, told(taken, 1), told(ratios, 2)])
    show(f"until an accuracy of {ACCURACY}, {len(seeds)} seeds", ("", "seconds", "of synchronous's"), rows)
    pairs = zip(seconds["joint, not told anything"], seconds["synchronous"], strict=True)
    return {"real_joint_over_synchronous": median(own / theirs for own, theirs in pairs)}


def _until(strategy: Strategy, seed: int) -> Run:
    goal = f"accuracy>={ACCURACY} or epochs>=60"
    run = fit(digits(batch=BATCH), strategy, place(), until=goal, seed=seed, evaluate_every="0.25 epochs")
    if "accuracy" not in run.ended:
        raise RuntimeError(f"{strategy!r} ended with {run.ended}")
    return run
