"""A job's profile on this machine: seconds per sample by batch size, threads, bytes per codec, merge time."""

import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import torch

from oddlot.core.sample_spans import Span
from oddlot.core.support.errors import UsageError
from oddlot.core.tasks import Facts, Task
from oddlot.engines.base import cores
from oddlot.engines.payloads import encoded, users_code
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.model.payload import Payload
from oddlot.model.weight_store import WeightStore
from oddlot.planner.job_size import JobSize
from oddlot.train.job import layout_of, made
from oddlot.train.learner import Learner
from oddlot.train.learner_inputs import LearnerInputs
from oddlot.wire.registry import CODECS, codec_of

if TYPE_CHECKING:
    from oddlot.train.job import Job

HERE = "this machine"
"""Name of the worker in errors of the job's code."""
TRIAL_SECONDS = 0.5
"""Time for each batch size, in seconds."""
MIN_STEPS, MAX_STEPS = 3, 1_000
KNEE = 1.05
"""A batch size is at the knee if no larger one is faster per sample by this factor."""
MEMORY_SHARE = 0.5
"""Share of this machine's memory that a batch may need; larger batches are not tried."""


@dataclass(frozen=True)
class BatchTime:
    """Speed at a batch size."""

    batch: int
    """Samples of a batch."""
    seconds_per_sample: float
    """Median time of a step, per sample."""
    peak_bytes: int
    """Largest memory of the process so far, in bytes."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The speed of a job on a machine."""

    job: str
    """Name of the job."""
    parameters: int
    """Number of parameters, to recognize another version of the job."""
    machine: str
    """Name and processor of the machine."""
    threads: int
    """Number of PyTorch threads with the highest speed at the knee."""
    seconds_by_threads: Mapping[int, float]
    """Seconds per sample at the knee, by number of threads."""
    batches: tuple[BatchTime, ...]
    """Speeds with `threads` threads, by batch size."""
    knee: int
    """Smallest batch size with nearly the highest speed per sample."""
    is_limited_by_memory: bool
    """Whether larger batches were not tried because of their memory."""
    bytes_down: int
    """Bytes of the weights that a worker receives."""
    bytes_up: Mapping[str, int]
    """Bytes of an update, by codec."""
    merge_seconds: float
    """Seconds of the hub to check and merge an update."""

    @property
    def batching_speedup(self) -> float:
        """Return the speed per sample at the fastest batch size, relative to one sample at a time.

        Paper: Hadjis et al., "Omnivore" (2016): 5.5x on CPUs for CaffeNet.
        """
        times = [each.seconds_per_sample for each in self.batches]
        return times[0] / min(times)

    def seconds_per_sample(self, batch: int) -> float:
        """Return the seconds per sample at a batch size, interpolated between the measured sizes."""
        known = self.batches
        if batch >= known[-1].batch:
            return known[-1].seconds_per_sample
        for low, high in pairwise(known):
            if batch < high.batch:
                share = (batch - low.batch) / (high.batch - low.batch)
                seconds = (1 - share) * low.batch * low.seconds_per_sample
                return (seconds + share * high.batch * high.seconds_per_sample) / batch
        return known[-1].seconds_per_sample

    def check(self, job: "Job", machine: str) -> None:
        """Raise UsageError if the profile is of another version of the job or of another machine."""
        for name, known, now in (
            ("parameters", self.parameters, JobSize.of(job).parameters),
            ("machine", self.machine, machine),
        ):
            if known != now:
                message = (
                    f"the profile has {name} = {known!r}, but now it is {now!r}: run oddlot profile again"
                )
                raise UsageError(message, "other_profile", name=name, known=known, given=now)


def profile(job: "Job", on_step: Callable[[str], None] = lambda _: None) -> Profile:
    """Measure a job on this machine, with batch sizes that double until memory or speed sets the limit.

    Args:
        job: The job.
        on_step: Called with a text before each measurement.

    Raise JobError if the job's code raises an exception.
    """
    before = torch.get_num_threads()
    try:
        with users_code(HERE):
            return _profile(job, on_step)
    finally:
        torch.set_num_threads(before)


def _profile(job: "Job", on_step: Callable[[str], None]) -> Profile:
    bench = _Bench(job)
    most = [number for number in (1, 2, 4, 8, 16, 32, 64, 128) if number <= cores()]
    on_step(f"batch sizes with {most[-1]} threads")
    batches, limited = bench.by_batch(most[-1], on_step)
    knee = _knee(batches)
    by_threads = {}
    for number in most:
        on_step(f"{number} threads with batches of {knee}")
        by_threads[number] = bench.seconds_per_sample(knee, number)
    best = min(by_threads, key=by_threads.__getitem__)
    if best != most[-1]:
        batches, limited = bench.by_batch(best, on_step)
        knee = _knee(batches)
    on_step("merge time and codecs")
    return Profile(
        job=job.name,
        parameters=JobSize.of(job).parameters,
        machine=this_machine(),
        threads=best,
        seconds_by_threads=by_threads,
        batches=tuple(batches),
        knee=knee,
        is_limited_by_memory=limited,
        bytes_down=bench.layout.bytes,
        bytes_up=bench.bytes_by_codec(),
        merge_seconds=bench.merge_seconds(),
    )


def this_machine() -> str:
    """Return the name and processor of this machine."""
    return f"{platform.node()}, {platform.processor() or platform.machine()}, {cores()} cores"


def _knee(batches: list[BatchTime]) -> int:
    """Return the smallest batch size that is within `KNEE` of the fastest."""
    least = min(each.seconds_per_sample for each in batches)
    return next(each.batch for each in batches if each.seconds_per_sample <= KNEE * least)


class _Bench:
    """A learner and a store of the job, in this process."""

    def __init__(self, job: "Job") -> None:
        self.job, self.clock = job, time.perf_counter
        model = made(job)
        self.layout = layout_of(job, model)
        self.constants = self.layout.constants(model)
        self.weights, self.update = (FlatBuffer.empty(self.layout) for _ in range(2))
        self.weights.gather(model)

    def by_batch(self, threads: int, on_step: Callable[[str], None]) -> tuple[list[BatchTime], bool]:
        """Return the speeds by batch size, and whether memory set the limit."""
        batch, found = 1, list[BatchTime]()
        most = self._learner(1).order.size if self.job.batch_sampler is None else 1
        while True:
            on_step(f"batches of {batch}")
            seconds = self.seconds_per_sample(batch, threads)
            found.append(BatchTime(batch, seconds, _peak_bytes()))
            if 2 * batch > most or _settled(found):
                return found, False
            if (
                2 * (_peak_bytes() - found[0].peak_bytes) + found[0].peak_bytes
                > MEMORY_SHARE * _memory_bytes()
            ):
                return found, True
            batch *= 2

    def seconds_per_sample(self, batch: int, threads: int) -> float:
        """Return the median time of steps, per sample."""
        torch.set_num_threads(threads)
        learner = self._learner(batch)
        task = Task("profile:1", HERE, (Span(0, 0, batch),), 0)
        learner.load(0, self.weights)
        learner.step(self.weights, task, self.update)  # the first step allocates memory
        times, began = list[float](), self.clock()
        while len(times) < MIN_STEPS or (self.clock() - began < TRIAL_SECONDS and len(times) < MAX_STEPS):
            at = self.clock()
            learner.load(0, self.weights)
            learner.step(self.weights, task, self.update)
            times.append(self.clock() - at)
        return median(times) / batch

    def _learner(self, batch: int) -> Learner:
        job = replace(self.job, batch_size=batch)
        return Learner(LearnerInputs(job=job, layout=self.layout, constants=self.constants))

    def bytes_by_codec(self) -> dict[str, int]:
        """Return the bytes of the last update with each registered codec."""
        return {name: encoded(self.update, codec_of(name), "gradient", self.weights).size for name in CODECS}

    def merge_seconds(self) -> float:
        """Return the seconds to receive and merge an update."""
        initial = FlatBuffer.empty(self.layout)
        initial.copy_(self.weights)
        store = WeightStore(initial, self.job.optimizer)
        times = []
        for number in range(MIN_STEPS + 1):
            flat = FlatBuffer.empty(self.layout)
            flat.copy_(self.update)
            facts = Facts(f"w1:{number}", "w1", store.version, 1)
            at = self.clock()
            store.receive(facts, Payload("gradient", flat))
            store.step({facts.id: 1.0})
            times.append(self.clock() - at)
        return median(times[1:])


def _settled(found: list[BatchTime]) -> bool:
    """Return whether two doublings have brought less than a factor of `KNEE`."""
    return len(found) > 2 and found[-1].seconds_per_sample * KNEE > found[-3].seconds_per_sample


def _peak_bytes() -> int:
    """Return the largest memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _memory_bytes() -> int:
    """Return the memory of this machine. A container may have less."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
