"""How good is the order of learnt durations? Mean completion times on a generated trace of recurrent jobs."""

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from math import exp, log
from multiprocessing import get_context
from statistics import fmean

from benchmarks.report import Measured, Size, cores
from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.core.policy_registry import policy_of
from oddlot.queue.predict.job_names import bucket_of
from oddlot.queue.predict.learnt import LearntPredictor
from oddlot.queue.predict.predictor import Prediction, Predictor
from oddlot.queue.predict.rolling import RollingPredictor
from oddlot.queue.replay.replay import machines_of
from oddlot.queue.replay.simulation import Simulation
from oddlot.queue.traces.generated import RecurrentJobs
from oddlot.queue.traces.trace import Trace, TraceJob

READINGS: Mapping[str, tuple[float, float]] = {"": (1.0, 1.5), "_sigma_of_templates": (0.3, 1.0)}
"""Suffix of the keys: `sigma` of a user's jobs of one template, and of the templates' medians.

Nothing predicts the first one. By the first reading of "log-normal durations with sigma 1.0", it is 1.0, and even the
exact medians give an order that is worse than the true durations' (`medians_over_oracle`). By the second reading, the
templates' medians have the sigma of 1.0.
"""


def measure(size: Size) -> dict[str, Measured]:
    """Return ratios of mean completion times under `qssf`, over seeds.

    - `learnt_over_oracle`: with learnt predictions, over true durations.
    - `learnt_over_rolling`: with learnt predictions, over the rolling ones alone.
    - `medians_over_oracle`: with the medians of each user's jobs of each template over the complete trace, over true
      durations. No predictor knows more.
    - `fifo_over_learnt`: first come, first served, over learnt predictions.
    """
    figures: dict[str, Measured] = {}
    jobs, seeds = size.pick(300, 10_000, 10_000), size.pick(1, 9, 25)
    for suffix, (sigma, spread) in READINGS.items():
        if suffix and size is Size.QUICK:
            continue
        generators = [
            RecurrentJobs(jobs=jobs, sigma=sigma, spread=spread, seed=seed) for seed in range(seeds)
        ]
        with ProcessPoolExecutor(cores(), get_context("spawn")) as pool:
            found = list(pool.map(_ratios, generators))
        for key in found[0]:
            figures[key + suffix] = [one[key] for one in found]
    return figures


def _ratios(generator: RecurrentJobs) -> dict[str, float]:
    trace = generator.trace()
    oracle = mean_completion(trace, "qssf", None)
    learnt = mean_completion(trace, "qssf", LearntPredictor())
    return {
        "learnt_over_oracle": learnt / oracle,
        "learnt_over_rolling": learnt / mean_completion(trace, "qssf", RollingPredictor()),
        "medians_over_oracle": mean_completion(trace, "qssf", Medians(trace)) / oracle,
        "fifo_over_learnt": mean_completion(trace, "fifo", None) / learnt,
    }


class Medians:
    """Knows the median of each user's jobs of each template in advance."""

    def __init__(self, trace: Trace) -> None:
        found: dict[tuple[str, str], list[float]] = {}
        for job in trace.jobs:
            found.setdefault(self._key(job.request), []).append(log(job.duration))
        self.seconds = {key: exp(fmean(values)) for key, values in found.items()}

    def predict(self, job: JobRequest, now: float, estimate: float | None = None) -> Prediction:
        """Return the median as the prediction."""
        seconds = self.seconds[self._key(job)]
        return Prediction(seconds, seconds, seconds)

    def observe(self, job: JobRequest, duration: float, now: float) -> None:
        """Learn nothing."""

    @staticmethod
    def _key(job: JobRequest) -> tuple[str, str]:
        return bucket_of(job.name), job.user


def mean_completion(trace: Trace, policy: str, predictor: Predictor | None) -> float:
    """Return the mean time from submission to end in seconds. Without a predictor, true durations are predicted."""
    machines = {"": machines_of("", trace.nodes[""], trace.gpus_per_node)}

    def predict(job: TraceJob, now: float) -> float:
        return predictor.predict(job.request, now).seconds if predictor else job.duration

    observe = predictor.observe if predictor else None
    simulation = Simulation(trace.jobs, policy_of(policy), machines, predict, observe, {"": 1.0}, None)
    return fmean(job.completion for job in simulation.run())
