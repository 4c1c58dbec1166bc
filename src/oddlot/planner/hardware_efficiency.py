"""Seconds per update of compute groups, from a closed queueing network: groups compute, then queue at the hub."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oddlot.machines import delay_models
from oddlot.machines.machine import Machine
from oddlot.machines.market import Hub
from oddlot.timing.survival import Numbers

DRAWS = 4_000
"""Rounds of a group that are drawn to estimate its mean duration."""
FULL_QUEUE_CV = 0.3
"""Minimum variation of a group's rounds to count its arrivals at the hub as random."""


@dataclass(frozen=True, slots=True)
class UpdateTime:
    """Predicted seconds per update, that is, per step of the model."""

    seconds: float
    """Prediction of the queueing network."""
    bound: float
    """The paper's model: the larger of the hub's time and of a group's share of a round without waiting."""
    barrier_share: float
    """Part of a round that a worker waits for the slowest of its group."""
    hub_share: float
    """Part of the time that the hub is busy."""


def update_time(
    machines: Sequence[Machine],
    groups: int,
    batch: int,
    hub: Hub = Hub(),  # noqa: B008 - frozen
    bytes_down: int = 0,
    bytes_up: int = 0,
    seed: int = 0,
) -> UpdateTime:
    """Predict the seconds per update of `Groups(Synchronous(), groups)` on these machines.

    A round of a group ends when the slowest of its workers has computed its part of `batch` samples and the hub has
    merged all of its updates, one after the other. Durations of rounds are drawn from the machines' delay models.
    Rounds of other groups that queue at the hub are added by mean value analysis, for service without variation; if
    rounds hardly vary, groups fall into step and wait less, so the result is moved towards the lower bound.

    Args:
        machines: Machines of the workers. Machine i is in group i modulo `groups`.
        groups: Number of groups.
        batch: Samples of an update.
        hub: The hub, with its seconds per update of a worker and its servers.
        bytes_down: Bytes of weights of a task.
        bytes_up: Bytes of an update of a worker.
        seed: Random seed.

    Source: Hadjis et al., "Omnivore" (2016), section 3.2, for `bound`; Reiser and Lavenberg, "Mean-Value Analysis of
    Closed Multichain Queuing Networks" (1980), for the queue.
    """
    rng = np.random.default_rng(seed)
    service = hub.seconds_per_update / (hub.servers if hub.overwrites else 1)
    rounds = [
        _rounds(machines[group::groups], batch, service, bytes_down + bytes_up, rng)
        for group in range(groups)
    ]
    alone = np.array([each.seconds.mean() for each in rounds])
    demand = service * len(machines) / groups
    bound = max(demand, 1 / float((1 / alone).sum()))
    cv = float(np.mean([each.seconds.std() / each.seconds.mean() for each in rounds]))
    waiting = _with_queue(alone, demand)
    weight = min(1.0, cv / FULL_QUEUE_CV)
    seconds = max(bound, weight * waiting + (1 - weight) * bound)
    barrier = float(np.mean([each.barrier for each in rounds]))
    return UpdateTime(seconds, bound, barrier, demand / seconds)


@dataclass(frozen=True, slots=True)
class _Rounds:
    seconds: Numbers
    """Drawn durations of rounds without other groups."""
    barrier: float


def _rounds(
    machines: Sequence[Machine], batch: int, service: float, size: int, rng: np.random.Generator
) -> _Rounds:
    """Draw rounds of one group of k machines."""
    k = len(machines)
    ready = np.empty((DRAWS, k))
    for rank, machine in enumerate(machines):
        samples = max(1, batch // k + (rank < batch % k))
        compute = machine.seconds_per_sample * samples * draws(machine.delay, DRAWS, rng)
        transfer = machine.link.seconds(size) * draws(machine.link.delay, DRAWS, rng)
        ready[:, rank] = compute + transfer
        ready[:, rank] += machine.link.latency_milliseconds / 1e3  # the second direction
    ready.sort(axis=1)
    merged = (ready + service * np.arange(k, 0, -1)).max(axis=1)  # the hub merges one after the other
    return _Rounds(merged, 1 - float(ready.mean() / ready[:, -1].mean()))


def _with_queue(alone: Numbers, demand: float) -> float:
    """Return the seconds per update of groups with these rounds. Each round occupies the hub for `demand`."""
    think = 1 / float((1 / np.maximum(alone - demand, 1e-12)).mean())
    queue = busy = 0.0
    for customers in range(1, len(alone) + 1):
        response = demand + demand * (queue - busy) + busy * demand / 2
        rate = customers / (think + response)
        queue, busy = rate * response, min(rate * demand, 1.0)
    return 1 / rate


def draws(delay: delay_models.Delay, count: int, rng: np.random.Generator) -> Numbers:
    """Draw factors of a delay model: array of `count`."""
    match delay:
        case delay_models.Exponential():
            return rng.exponential(size=count)
        case delay_models.ShiftedExponential(shift):
            return shift + (1 - shift) * rng.exponential(size=count)
        case delay_models.Erlang(shape):
            return rng.gamma(shape, 1 / shape, size=count)
        case delay_models.Lognormal(cv) if cv:
            variance = np.log1p(cv**2)
            return rng.lognormal(-variance / 2, np.sqrt(variance), size=count)
        case delay_models.Trace(multipliers):
            return rng.choice(np.array(multipliers), size=count)
        case delay_models.Deterministic() | delay_models.Lognormal():
            return np.ones(count)
