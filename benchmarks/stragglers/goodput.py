"""Goodput of failing machines, from 8 to 10,000 learners.

Goodput is the merged samples times the seconds per sample, divided by the time of all learners, absences included.
Samples count at the time of their computation, during five eighths of a run. A task takes 30 seconds, and its times
vary like the minibatches of a real job. A machine stays for an exponential time, and returns 60 seconds later. In
lock-step, each failure takes all learners back to the last checkpoint, after a restart of 120 seconds. Checkpoints are
ten minutes apart.
"""

import time
from collections.abc import Callable, Sequence
from math import exp, expm1
from random import Random
from statistics import median

from benchmarks.report import Size, median_and_range, show
from benchmarks.stragglers.merged import merged_a_second
from oddlot import (
    SGD,
    VCASGD,
    AdaptiveLoad,
    LocalSGD,
    Machine,
    Quorum,
    Simulated,
    Strategy,
    Synchronous,
    fit,
)
from oddlot.core.support.user_warnings import once
from oddlot.machines import Lifetime, Link, Lognormal
from oddlot.planner.run_shape import RunShape

RESTART, CHECKPOINT, REJOIN, TASK = 120.0, 600.0, 60.0, 30.0
"""Seconds of a restart, between checkpoints, until a machine returns, and of a task."""
BATCH, STEPS = 8, 16
SCATTER = Lognormal(0.057)
"""Delay model of those fitted by `networks` that is nearest to the minibatches of Alibaba's first job."""
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
BETWEEN = {"10 minutes": 10 * MINUTE, "1 hour": HOUR, "1 day": DAY, "30 days": 30 * DAY, "1 year": 365 * DAY}
HOURS = {8: 8.0, 100: 1.0, 1_000: 0.5, 10_000: 0.25}
"""Hours of a run, by number of learners."""
SEEDS = {8: 5, 100: 5, 1_000: 3, 10_000: 1}
"""Number of runs, by number of learners. With many learners, runs differ little."""
FAR = Link(latency_milliseconds=1000)
AT = 0.27
"""Goodput of lock-step in the comparison of policies, as published for Decoupled DiLoCo."""
POLICIES: dict[str, Callable[[int], Strategy]] = {
    "synchronous": lambda _: Synchronous(STEPS * BATCH),
    "joint": lambda learners: AdaptiveLoad(
        loads=tuple(STEPS * BATCH // part for part in (8, 4, 2, 1)), least=learners * STEPS * BATCH * 2 // 5
    ),
    "quorum": lambda _: Quorum(LocalSGD(STEPS, SGD(0.7, 0.9, nesterov=True))),
    "quorum_no_grace": lambda _: Quorum(LocalSGD(STEPS, SGD(0.7, 0.9, nesterov=True)), grace=0.0),
    "vc_asgd": lambda _: VCASGD(newest=True),
}
"""Policies by number of learners.

Without gradients, joint stays in its first stage: the quickest rounds with two fifths of the samples of a synchronous
round.
"""


def lock_step(learners: int, between: float) -> float:
    """Return the long-run goodput of lock-step, with memoryless failures that may also occur during a restart.

    The work between two checkpoints takes (exp(rate x CHECKPOINT) - 1) x exp(rate x RESTART) / rate seconds.
    """
    rate = learners / between
    return rate * CHECKPOINT * exp(-rate * RESTART) / expm1(min(rate * CHECKPOINT, 700.0))


def drawn_lock_step(learners: int, between: float, seconds: float, seed: int = 0) -> float:
    """Return the goodput of lock-step with random failures, up to some seconds."""
    chance, now, kept = Random(seed), 0.0, 0.0
    failure = chance.expovariate(learners / between)
    while now < seconds:
        if failure >= now + CHECKPOINT:
            now, kept = now + CHECKPOINT, kept + CHECKPOINT
            continue
        now = failure + RESTART
        failure += chance.expovariate(learners / between)
        while failure < now < seconds:  # a failure during a restart begins another restart
            now = failure + RESTART
            failure += chance.expovariate(learners / between)
    return kept / now


def between_at(learners: int, goodput: float) -> float:
    """Return the seconds between a learner's failures that give lock-step this goodput, by bisection."""
    low, high = 1.0, 1e12
    while high / low > 1 + 1e-9:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if lock_step(learners, middle) < goodput else (low, middle)
    return high


def goodput(policy: str, learners: int, between: float, hours: float, seed: int, link: Link) -> float:
    """Return the goodput of a run without computation."""
    pace = TASK / (STEPS * BATCH)
    machines = [
        Machine(f"m{number}", pace, SCATTER, link, lifetime=Lifetime(between), seconds_to_return=REJOIN)
        for number in range(learners)
    ]
    shards = 4 * learners
    samples = shards * STEPS * BATCH
    job = RunShape(samples, BATCH, sample_bytes=12).job()
    strategy, seconds = POLICIES[policy](learners), hours * HOUR
    cuts = shards if policy == "vc_asgd" else 1
    run = fit(
        job,
        strategy,
        Simulated(machines, seed=seed, computes=False),
        until=f"seconds>={seconds}",
        shards=cuts,
    )
    return merged_a_second(run) * pace / learners


def measure(size: Size, some: Sequence[int] | None = None) -> dict[str, float]:
    """Print a table for each number of learners. In its first row, the goodput of lock-step is 0.27.

    Return the worst values of these rows, if all numbers of learners are measured in a full run.
    """
    with once():  # every joint run warns that there are no gradients
        figures = _worst(size, some or list(HOURS)[: size.pick(1, 1, len(HOURS))])
    return {} if some or size is Size.QUICK else figures


def _worst(size: Size, several: Sequence[int]) -> dict[str, float]:
    figures = dict[str, float]()
    for learners in several:
        some = dict(list(BETWEEN.items())[: size.pick(1, None, None)])
        between = {f"where lock-step is at {AT}": between_at(learners, AT), **some}
        hours, seeds = HOURS[learners] / size.pick(100, 4, 1), range(size.pick(1, 1, SEEDS[learners]))
        for policy, found in _table(learners, between, hours, seeds).items():
            name = f"goodput_{policy}_at_lockstep_27"
            figures[name] = min(found, figures.get(name, 1.0))
    return figures


def _table(learners: int, between: dict[str, float], hours: float, seeds: range) -> dict[str, float]:
    """Return the first row: lock-step's goodput is 0.27. Print a table that also has this row with slow links."""
    rows, first, began = list[list[str]](), dict[str, float](), time.perf_counter()

    def add(name: str, seconds: float, plain: tuple[float, ...], link: Link) -> dict[str, float]:
        found = {
            policy: [goodput(policy, learners, seconds, hours, seed, link) for seed in seeds]
            for policy in POLICIES
        }
        lock_steps = [f"{one:.3f}" for one in plain] or ["", ""]
        rows.append([name, *lock_steps, *(median_and_range(cell, 3) for cell in found.values())])
        print(learners, *rows[-1], flush=True)
        return {policy: median(cell) for policy, cell in found.items()}

    for name, seconds in between.items():
        plain = lock_step(learners, seconds), drawn_lock_step(learners, seconds, 1e7)
        row = add(name, seconds, plain, Link())
        if not first:
            first = row
            add("... with a second each way", seconds, (), FAR)
    wall = f"{time.perf_counter() - began:.0f} s of wall time"
    title = f"goodput of {learners:,} learners, {hours:g} h, {len(seeds)} runs ({wall})"
    show(title, ("between a learner's failures", "lock-step", "... drawn", *POLICIES), rows)
    print("A task takes 30 s on average: in a short run tasks may be quicker, and goodput a little above 1.")
    return first
