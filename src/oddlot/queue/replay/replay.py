"""Replays of a trace: its machines, its predictions, and what came out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random
from time import perf_counter

from oddlot.queue.core.machines import Machine
from oddlot.queue.core.policy import Policy
from oddlot.queue.predict.error_model import predicted
from oddlot.queue.predict.predictor_registry import predictor_of
from oddlot.queue.replay.simulation import Observe, Predict, ReplayedJob, Simulation
from oddlot.queue.traces.trace import TraceJob


@dataclass(frozen=True)
class Replay:
    """A trace that was replayed under a policy."""

    policy: str
    jobs: Sequence[ReplayedJob]
    """Jobs in the order of submission."""
    machines: Mapping[str, Sequence[Machine]]
    """Machines by virtual cluster, or of all clusters under the key ""."""
    seconds: float
    """Time that the replay took."""


def replay(
    jobs: Sequence[TraceJob],
    policy: Policy,
    machines: Mapping[str, Sequence[Machine]],
    predictions: str = "exact",
    seed: int = 0,
    longest_wait: float | None = None,
) -> Replay:
    """Replay jobs under a policy.

    Parameters
    ----------
    jobs
        Jobs of a trace.
    policy
        A policy. Oracles always get exact predictions.
    machines
        Machines by virtual cluster, see `machines_for_load`. With the single key "", all clusters share them.
    predictions
        "exact" (true durations), "error" (true durations with the published errors), or a predictor by name or import
        path: "rolling", "learnt".
    seed
        Seed of the prediction errors.
    longest_wait
        Seconds after which a job comes first, whatever the policy says.

    Raise UsageError if a job fits on no machines, if two jobs have the same id, or if the predictor is
    unknown.
    """
    predict, observe = _prediction("exact" if policy.oracle else predictions, seed)
    simulation = Simulation(jobs, policy, machines, predict, observe, _shares(jobs, machines), longest_wait)
    before = perf_counter()
    replayed = simulation.run()
    return Replay(policy.name or type(policy).__name__, replayed, machines, perf_counter() - before)


def machines_for_load(
    jobs: Sequence[TraceJob], load: float, seconds: float | None = None, gpus: int = 8
) -> dict[str, list[Machine]]:
    """Return machines by virtual cluster. Their number is chosen so that the jobs use the share `load` of the machines.

    A cluster has at least the machines that its largest job needs. `seconds`: length of the trace (default: from the
    first submission to the last). `gpus`: GPUs of a machine.
    """
    if seconds is None:
        submitted = [job.request.submitted for job in jobs]
        seconds = max(1.0, max(submitted) - min(submitted))
    largest: dict[str, int] = {}
    used: dict[str, float] = {}
    for job in jobs:
        name = job.request.virtual_cluster
        largest[name] = max(largest.get(name, 0), job.request.gpus)
        used[name] = used.get(name, 0.0) + job.request.gpus * job.duration
    return {
        name: machines_of(
            name, max(ceil(largest[name] / gpus), ceil(used[name] / (gpus * seconds * load))), gpus
        )
        for name in sorted(used)
    }


def machines_of(cluster: str, count: int, gpus: int = 8) -> list[Machine]:
    """Return equal machines of a virtual cluster. Their cores are not counted."""
    return [Machine(f"{cluster}-{number:04}", gpus) for number in range(count)]


def _shares(jobs: Sequence[TraceJob], machines: Mapping[str, Sequence[Machine]]) -> dict[str, float]:
    """Return the shares of the virtual clusters on shared machines: equal ones."""
    return {job.request.virtual_cluster: 1.0 for job in jobs} if "" in machines else {}


def _prediction(kind: str, seed: int) -> tuple[Predict | None, Observe | None]:
    if kind == "exact":
        return None, None
    if kind == "error":
        random = Random(seed)
        return lambda job, _: predicted(job.duration, random), None
    predictor = predictor_of(kind)
    return lambda job, now: predictor.predict(job.request, now).seconds, predictor.observe
