"""Networks on real pictures under real machines' times: seconds until an accuracy, under a virtual clock."""

import os
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import fmean, median

from benchmarks.report import show, told
from benchmarks.stragglers.least_squares import in_processes
from oddlot import (
    AdaptiveK,
    AdaptiveLoad,
    Asynchronous,
    BackupTasks,
    FastestK,
    Job,
    Link,
    Quorum,
    Simulated,
    Strategy,
    Synchronous,
    fit,
)
from oddlot.machines.fitting import fit_delays
from oddlot.machines.step_times import (
    StepTimes,
    machines_like,
    read_minibatch_times,
    read_operation_times,
    read_vm_times,
)
from oddlot.tasks.cifar10 import cifar10
from oddlot.tasks.mnist import mnist

WORKERS, SECONDS, BATCH, TESTED = 8, 1.0, 64, 2_000
"""SECONDS: of a minibatch on average; TESTED: pictures by which accuracy is measured in a run"""
LINK = Link(latency_milliseconds=50)
"""each way: a tenth of a minibatch there and back"""
KS = (1, 2, 4, 6, 7)
JOBS: dict[str, tuple[Callable[[], Job], float, int]] = {
    "mnist": (lambda: mnist(batch=BATCH), 0.97, 8),
    "cifar10": (lambda: cifar10(batch=BATCH), 0.55, 15),
}
"""with the accuracy that is waited for, and epochs after which a run gives up"""
BEST_K = "best fixed k"
POLICIES: dict[str, Callable[[], Strategy]] = {
    "synchronous": Synchronous,
    "synchronous, a batch for all": lambda: Synchronous(BATCH // WORKERS),
    **{f"k = {k}": lambda k=k: FastestK(k=k) for k in KS},  # type: ignore[misc]  # a default is the way to bind it
    "adaptive k": AdaptiveK,
    "joint": AdaptiveLoad,
    "asynchronous": Asynchronous,
    "backup tasks": lambda: BackupTasks(Synchronous()),
    "quorum": lambda: Quorum(steps=4),
}
Asked = tuple[str, str, str, int]
"""job, record, policy and seed"""


def records() -> dict[str, StepTimes]:
    """The real ones that are in ODDLOT_DATA."""
    data = Path(os.environ.get("ODDLOT_DATA", ""))
    alibaba, bytedance, azure = (
        data / f"straggler_{name}" for name in ("alibaba_minibatch", "bytedance", "azure_vm_noise")
    )
    found = dict[str, StepTimes]()
    if alibaba.is_dir():
        found["alibaba job 1"] = read_minibatch_times(alibaba / "job_1_norm.csv")
    if bytedance.is_dir():
        found["bytedance AR"] = read_operation_times(bytedance / "trace-AR.csv.gz")
        found["bytedance SE"] = read_operation_times(bytedance / "trace-SE.csv.gz")
    if azure.is_dir():
        found["azure B8ms"] = read_vm_times(azure / "azure_vm_noise_westus2.csv.gz", "OSBench", "B8ms")
    return found


def measure(quick: bool) -> dict[str, float]:
    """What was fitted, and a table for each job; the worst ratio of joint to the best of the others."""
    there = records()
    if not there:
        print("ODDLOT_DATA names no folder with straggler_alibaba_minibatch and others: left out")
        return {}
    _fits(there)
    jobs, seeds = list(JOBS)[:1] if quick else list(JOBS), range(1 if quick else 5)
    worst = 0.0
    for job in jobs:
        for record in list(there)[:2] if quick else there:
            worst = max(worst, _table(job, record, seeds))
    return {"joint_over_best_worst_trace": worst}


def _fits(there: dict[str, StepTimes]) -> None:
    """Delay models of each record's machines, over each one's own mean."""
    rows = []
    for name, times in there.items():
        means = [fmean(record) for record in times.values()]
        best, second, *_ = fit_delays([time / fmean(record) for record in times.values() for time in record])
        spread = f"{min(means) / fmean(means):.2f} to {max(means) / fmean(means):.2f}"
        told_of = [f"{fit.delay!r}, {fit.distance:.3f}" for fit in (best, second)]
        rows.append([name, f"{len(times)}", f"{best.measured:,}", spread, *told_of])
    columns = ("record", "machines", "times", "means over the mean of all", "nearest, its distance", "second")
    show("delay models", columns, rows)


def _table(job: str, record: str, seeds: range) -> float:
    """Joint over the best of the others, by medians."""
    asked = [(job, record, policy, seed) for policy in POLICIES for seed in seeds]
    found = dict(zip(asked, in_processes(_run, asked), strict=True))
    seconds = {policy: [found[job, record, policy, seed] for seed in seeds] for policy in POLICIES}
    best_k = min(
        (policy for policy in POLICIES if policy.startswith("k = ")), key=lambda one: median(seconds[one])
    )
    others = {name: median(taken) for name, taken in seconds.items() if name != "joint"}
    best = min(others, key=lambda name: others[name])
    rows = [
        [
            f"{name} ({BEST_K})" if name == best_k else name,
            told(taken, 0),
            f"{median(taken) / others[best]:.2f}",
        ]
        for name, taken in seconds.items()
    ]
    show(
        f"{job}, {WORKERS} machines as in {record}: seconds until an accuracy of {JOBS[job][1]}, {len(seeds)} seeds",
        ("", "seconds", f"over the best of the others, {best}"),
        rows,
    )
    joint = median(seconds["joint"])
    return joint / others[best] if joint < inf else inf


def _run(asked: Asked) -> float:
    """Seconds of virtual time; infinity where the accuracy never came."""
    name, record, policy, seed = asked
    make, accuracy, epochs = JOBS[name]
    machines = [replace(one, link=LINK) for one in machines_like(records()[record], WORKERS, SECONDS / BATCH)]
    job = make()
    inputs, targets = job.evaluation
    job = replace(job, evaluation=(inputs[:TESTED], targets[:TESTED]))
    goal = f"accuracy>={accuracy} or epochs>={epochs}"
    on = Simulated(machines, seed=seed)
    run = fit(job, POLICIES[policy](), on, until=goal, seed=seed, evaluate_every="0.05 epochs")
    return float(run.summary["seconds"]) if "accuracy" in run.ended else inf
