"""Philly's jobs under the policies of the queue.

The jobs were submitted from 2017-10-01 to 11-30 to the virtual clusters with a known number of nodes. The number of
machines with 8 GPUs of each cluster is chosen for a load: the share of the GPUs that its jobs use. A cluster has at
least the machines that its largest job needs. QSSF and backfilling know
durations with the published errors of Helios' simulator. All gains are mean completion times, `fifo` over `qssf`, and
`fifo_backfill` over `qssf_backfill` with the same predictions.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from benchmarks import plots
from benchmarks.report import Measured, Size, cores, show
from oddlot.core.support.errors import UsageError
from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.core.policy_registry import policy_of
from oddlot.queue.replay.replay import machines_for_load, machines_of, replay
from oddlot.queue.replay.replay_figures import figures_of
from oddlot.queue.traces.generated import RecurrentJobs
from oddlot.queue.traces.read_trace import read_trace
from oddlot.queue.traces.trace import TraceJob
from oddlot.report.svg_charts import Line

FIRST, LAST = datetime(2017, 10, 1, tzinfo=UTC), datetime(2017, 12, 1, tzinfo=UTC)
SECONDS = (LAST - FIRST).total_seconds()
LOADS, MORE_LOADS = (0.60, 0.75, 0.90), (0.50, 0.85, 0.70, 0.80, 0.95)
SEEDS = 5
PAPER = 6.5
"""Highest gain in the abstract of Hu et al. 2021."""


class Task(NamedTuple):
    """A replay to do."""

    policy: str
    load: float
    seed: int


class Means(NamedTuple):
    """What a replay gives, in seconds."""

    completion: float
    queued: float
    seconds: float
    """Time that the replay took."""


def measure(size: Size) -> dict[str, Measured]:
    """Return the figures, and draw the gain over the load."""
    jobs = _jobs(size)
    speed = {
        policy: median(_replayed(jobs, Task(policy, 0.75, 0)).seconds for _ in range(3))
        for policy in ("qssf", "qssf_backfill")
    }
    loads = size.pick(LOADS, LOADS + MORE_LOADS[:2], LOADS + MORE_LOADS)
    done = _all(jobs, _tasks(loads, size.pick(1, SEEDS, SEEDS)))
    found: dict[str, Measured] = {
        "replay_seconds": speed["qssf"],
        "replay_seconds_backfill": speed["qssf_backfill"],
    }
    for load in LOADS:
        found[f"jct_gain_{load:.0%}".rstrip("%")] = _ratios(done, load, "fifo", "qssf")
    for load in LOADS[:2]:
        found[f"qssf_over_sjf_{load:.0%}".rstrip("%")] = _ratios(done, load, "qssf", "sjf")
    found["jct_gain_backfill_75"] = _ratios(done, 0.75, "fifo_backfill", "qssf_backfill")
    found["queueing_gain_75"] = _ratios(done, 0.75, "fifo", "qssf", "queued")
    found["queueing_gain_backfill_75"] = _ratios(done, 0.75, "fifo_backfill", "qssf_backfill", "queued")
    gains = {load: median(_ratios(done, load, "fifo", "qssf")) for load in sorted(loads)}
    highest = max(gains, key=gains.__getitem__)
    found |= {"jct_gain_highest": gains[highest], "jct_gain_highest_load": highest}
    _show(done, gains)
    backfill = {load: median(_ratios(done, load, "fifo_backfill", "qssf_backfill")) for load in gains}
    drawn = [
        Line("fifo / qssf", list(gains.items()), 0),
        Line("fifo_backfill / qssf_backfill", list(backfill.items()), 1),
        Line("highest gain in the paper", [(load, PAPER) for load in gains], 7, dashed=True),
    ]
    plots.save(size, "queue_gain", "Philly: gain of predicted GPU time over FIFO", "load", "gain", drawn, 1.0)
    return found


def million(size: Size) -> dict[str, Measured]:
    """Return the time of a replay of a million generated jobs. Not measured in quick runs."""
    if size is Size.QUICK:
        return {}
    trace = RecurrentJobs(jobs=size.pick(300, 0, 1_000_000)).trace()
    machines = {"": machines_of("", sum(trace.nodes.values()), trace.gpus_per_node)}
    return {"replay_seconds_million": replay(trace.jobs, policy_of("qssf"), machines, "error").seconds}


def _jobs(size: Size) -> list[TraceJob]:
    if size is Size.SMOKE:
        random = Random(0)
        shapes = ((one, 60 * one**2 * random.random()) for one in random.choices((1, 1, 2, 4, 8, 16), k=400))
        return [
            TraceJob(
                JobRequest(str(number), SECONDS / 4_000 * number, gpus, virtual_cluster="vc"), seconds * 1_000
            )
            for number, (gpus, seconds) in enumerate(shapes)
        ]
    folder = Path(os.environ.get("ODDLOT_DATA", "")) / "trace_philly"
    if not folder.is_dir():
        raise UsageError("$ODDLOT_DATA has no folder trace_philly", "no_data", path=str(folder))
    read = read_trace(folder)
    return [
        job
        for job in read.jobs
        if job.request.virtual_cluster in read.nodes
        and FIRST.timestamp() <= job.request.submitted < LAST.timestamp()
    ]


def _tasks(loads: Iterable[float], seeds: int) -> list[Task]:
    tasks = []
    for load in loads:
        draws = range(seeds if load in LOADS else 1)
        tasks += [Task("fifo", load, 0), *(Task("qssf", load, seed) for seed in draws)]
        tasks += [Task("sjf", load, 0)] * (load in LOADS[:2])
        backfilled = range(seeds if load == 0.75 else 1)
        tasks += [
            Task(f"{policy}_backfill", load, seed) for policy in ("fifo", "qssf") for seed in backfilled
        ]
    return tasks


def _all(jobs: Sequence[TraceJob], tasks: Sequence[Task]) -> dict[Task, Means]:
    with ProcessPoolExecutor(cores(), get_context("fork"), _keep, (jobs,)) as pool:
        return dict(zip(tasks, pool.map(_kept, tasks), strict=True))


_KEPT: list[TraceJob] = []


def _keep(jobs: Sequence[TraceJob]) -> None:
    _KEPT.extend(jobs)


def _kept(task: Task) -> Means:
    return _replayed(_KEPT, task)


def _replayed(jobs: Sequence[TraceJob], task: Task) -> Means:
    machines = machines_for_load(jobs, task.load, SECONDS)
    done = replay(jobs, policy_of(task.policy), machines, "error", task.seed)
    figures = figures_of(done)
    return Means(figures.mean_completion, figures.mean_queued, done.seconds)


def _ratios(
    done: dict[Task, Means], load: float, above: str, below: str, what: str = "completion"
) -> list[float]:
    """Return one ratio for each seed. Policies without predictions have one result for all seeds."""
    seeds = sorted({task.seed for task in done if task.load == load and task.policy in {above, below}})

    def value(policy: str, seed: int) -> float:
        means = done.get(Task(policy, load, seed)) or done[Task(policy, load, 0)]
        found: float = getattr(means, what)
        return found

    return [value(above, seed) / value(below, seed) for seed in seeds]


def _show(done: dict[Task, Means], gains: dict[float, float]) -> None:
    policies = ("fifo", "qssf", "sjf", "fifo_backfill", "qssf_backfill")
    rows = []
    for load in gains:
        cells = []
        for policy in policies:
            means = [means for task, means in done.items() if task.policy == policy and task.load == load]
            cells.append(
                f"{median(one.completion for one in means):,.0f} / {median(one.queued for one in means):,.0f}"
                if means
                else "-"
            )
        rows.append([f"{load:.2f}", *cells])
    show("Philly: mean completion time / queueing delay, seconds", ["load", *policies], rows)
