"""Time to an accuracy of small networks on images, with recorded step times, on a virtual clock.

The cost of a gradient on this machine does not affect the clock, so the network is small: two strided convolutions.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from math import inf
from pathlib import Path
from statistics import fmean, median

from torch import Tensor, nn

from benchmarks.processes import in_processes
from benchmarks.report import Size, median_and_range, show
from oddlot import (
    SGD,
    AdaptiveK,
    AdaptiveLoad,
    Asynchronous,
    BackupTasks,
    FastestK,
    Job,
    LocalSGD,
    ProportionalLoad,
    Quorum,
    Simulated,
    Strategy,
    Synchronous,
    fit,
)
from oddlot.machines import Link
from oddlot.machines.delay_models import Delay
from oddlot.machines.step_time_records import (
    StepTimes,
    machines_like,
    read_minibatch_times,
    read_operation_times,
    read_vm_times,
)
from oddlot.timing.delay_fitting import fit_delays
from oddlot.workloads.cifar10 import cifar10
from oddlot.workloads.mnist import mnist

WORKERS, SECONDS, BATCH, TESTED = 8, 1.0, 64, 5
"""SECONDS: mean time of a minibatch. TESTED: one of this many test images is evaluated."""
LINK = Link(latency_milliseconds=50)
"""Latency of each way. Both ways take a tenth of a minibatch's time."""
KS = tuple(range(1, WORKERS))
JOBS: dict[str, tuple[Callable[[], Job], float, tuple[int, int, float, float]]] = {
    "mnist": (mnist, 0.97, (1, 28, 33, 79)),
    "cifar10": (cifar10, 0.5, (3, 32, 121, 64)),
}
"""Job, accuracy to reach, and the images' channels, side, mean and standard deviation."""
EPOCHS = 4
"""Maximum number of epochs of a run that misses the accuracy."""
BEST_K = "best fixed k"
PLAIN = "asynchronous, no momentum"
"""Asynchronous SGD without damping and without momentum. Many workers in turn have implicit momentum."""


def _even(batches: int) -> Strategy:
    return Synchronous(batches * BATCH // WORKERS)


def _in_proportion(batches: int) -> Strategy:
    return ProportionalLoad(Synchronous(batches * BATCH // WORKERS))


SWEEP: dict[str, Callable[[], Strategy]] = {
    f"k = {k}": lambda k=k: FastestK(k=k)  # type: ignore[misc]  # binds k
    for k in KS
}
SHARED = {"a batch": 1, "two batches": 2, "four batches": 4}
"""Batches per round, shared by all workers. `Synchronous` alone gives a batch to each worker."""
POLICIES: dict[str, Callable[[], Strategy]] = {
    "synchronous": Synchronous,
    **{f"synchronous, {some} for all": partial(_even, batches) for some, batches in SHARED.items()},
    "loads in proportion": lambda: ProportionalLoad(Synchronous()),
    **{
        f"loads in proportion, {some} for all": partial(_in_proportion, batches)
        for some, batches in SHARED.items()
    },
    "k = 6, a batch for these": lambda: FastestK(k=6, samples=BATCH // 6),
    **SWEEP,
    "adaptive k": AdaptiveK,
    "joint": AdaptiveLoad,
    "asynchronous": Asynchronous,
    PLAIN: lambda: Asynchronous(damping=0.0),
    "backup tasks": lambda: BackupTasks(Synchronous()),
    "quorum": lambda: Quorum(LocalSGD(4, SGD(0.7, 0.9, nesterov=True))),
    "quorum, no grace": lambda: Quorum(LocalSGD(4, SGD(0.7, 0.9, nesterov=True)), grace=0.0),
}
SOME = ["synchronous", "k = 2", "joint", PLAIN, "quorum"]
"""Policies of the smoke form and the quick form."""
Asked = tuple[str, str, str, int]
"""Job, record, policy and seed."""


RECORDS: dict[str, tuple[str, Callable[[Path], StepTimes]]] = {
    "alibaba": ("straggler_alibaba_minibatch/job_1_norm.csv", read_minibatch_times),
    "bytedance-ar": ("straggler_bytedance/trace-AR.csv.gz", read_operation_times),
    "bytedance-se": ("straggler_bytedance/trace-SE.csv.gz", read_operation_times),
    "azure": (
        "straggler_azure_vm_noise/azure_vm_noise_westus2.csv.gz",
        lambda path: read_vm_times(path, "OSBench", "B8ms"),
    ),
}
"""File in ODDLOT_DATA and its reader, by record."""


class Small(nn.Module):
    """A network from bytes [n, side, side] or [n, channels, side, side] to scores [n, 10]."""

    def __init__(self, channels: int, side: int, mean: float, deviation: float) -> None:
        super().__init__()
        self.shape, self.mean, self.deviation = (channels, side, side), mean, deviation
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 8, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(side * side, 10),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        scores: Tensor = self.layers((pixels.float().view(-1, *self.shape) - self.mean) / self.deviation)
        return scores


def measure(
    size: Size,
    jobs: Sequence[str] | None = None,
    records: Sequence[str] | None = None,
    policies: Sequence[str] | None = None,
) -> dict[str, float]:
    """Print the fitted delay models, and a table for each job and record.

    Return the worst ratio of joint to the best alternative, if all jobs, records and policies are measured.
    """
    asked = records or list(RECORDS)[: size.pick(None, 1, None)]
    there = [name for name in asked if _path(name).is_file()]
    if left_out := [name for name in asked if name not in there]:
        print(f"ODDLOT_DATA has no {', '.join(RECORDS[name][0] for name in left_out)}: left out")
    _fits({name: _times(name) for name in there})
    seeds, worst = range(size.pick(1, 1, 5)), list[float]()
    for job in jobs or list(JOBS)[: size.pick(1, 1, None)]:
        for record in there[: size.pick(1, None, None)]:
            some = policies or size.pick(SOME, SOME, list(POLICIES))
            worst.append(_table(size, job, record, some, seeds))
    is_complete = not (jobs or records or policies or left_out) and size is not Size.QUICK
    return {"joint_over_best_worst_trace": max(worst)} if is_complete else {}


def _path(record: str) -> Path:
    return Path(os.environ.get("ODDLOT_DATA", "")) / RECORDS[record][0]


@cache
def _times(record: str) -> StepTimes:
    return RECORDS[record][1](_path(record))


def _fits(there: dict[str, StepTimes]) -> None:
    """Print the delay models of each record. Times are relative to their machine's mean."""
    rows = []
    for name, times in there.items():
        means = [fmean(record) for record in times.values()]
        best, second, *_ = fit_delays([time / fmean(record) for record in times.values() for time in record])
        spread = f"{min(means) / fmean(means):.2f} to {max(means) / fmean(means):.2f}"
        text_of = [f"{_short(fit.delay)}, {fit.distance:.3f}" for fit in (best, second)]
        rows.append([name, f"{len(times)}", f"{best.measured:,}", spread, *text_of])
    columns = ("record", "machines", "times", "means over the mean of all", "nearest, its distance", "second")
    show("delay models", columns, rows)


def _short(delay: Delay) -> str:
    settings = (f"{name}={value:.3g}" for name, value in asdict(delay).items())
    return f"{type(delay).__name__}({', '.join(settings)})"


def _table(size: Size, job: str, record: str, policies: Sequence[str], seeds: range) -> float:
    """Print a table. Return joint / best alternative, by medians."""
    asked = [(job, record, policy, seed) for policy in policies for seed in seeds]
    found = dict(zip(asked, in_processes(partial(_run, size), asked), strict=True))
    seconds = {policy: [found[job, record, policy, seed] for seed in seeds] for policy in policies}
    ks = (policy for policy in policies if policy in SWEEP)
    best_k = min(ks, key=lambda one: median(seconds[one]), default="")
    others = {name: median(taken) for name, taken in seconds.items() if name != "joint"}
    best = min(others, key=lambda name: others[name])
    rows = [
        [
            f"{name} ({BEST_K})" if name == best_k else name,
            median_and_range(taken, 0),
            f"{median(taken) / others[best]:.2f}",
        ]
        for name, taken in seconds.items()
    ]
    until = f"seconds until an accuracy of {_goal(size, job)}"
    show(
        f"{job}, {WORKERS} machines as in {record}: {until}, {len(seeds)} seeds",
        ("", "seconds", f"over the best of the others, {best}"),
        rows,
    )
    joint = median(seconds["joint"])
    return joint / others[best] if joint < inf else inf


@cache
def _job(name: str) -> Job:
    make, _, pictures = JOBS[name]
    job = make()
    inputs, targets = job.eval_data
    tested = inputs[::TESTED], targets[::TESTED]
    return replace(job, model=partial(Small, *pictures), batch_size=BATCH, eval_data=tested)


def _goal(size: Size, job: str) -> float:
    return size.pick(0.15, JOBS[job][1], JOBS[job][1])


def _run(size: Size, asked: Asked) -> float:
    """Return the seconds of virtual time to the accuracy, or infinity."""
    name, record, policy, seed = asked
    machines = [replace(one, link=LINK) for one in machines_like(_times(record), WORKERS, SECONDS / BATCH)]
    goal = f"accuracy>={_goal(size, name)} or epochs>={EPOCHS}"
    on = Simulated(machines, seed=seed)
    job = _job(name)
    if policy == PLAIN:
        job = replace(job, optimizer=SGD(lr=job.optimizer.lr))
    run = fit(job, POLICIES[policy](), on, until=goal, seed=seed, evaluate_every="0.05 epochs")
    return float(run.summary["seconds"]) if "accuracy" in run.ended else inf
