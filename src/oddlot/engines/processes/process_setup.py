"""The setup of a worker process: PyTorch's settings, the inputs from the run, and the learner."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch

from oddlot.engines.base import RunData
from oddlot.train.job import Job
from oddlot.train.learner import Learner


@dataclass(frozen=True)
class ProcessSetup:
    """PyTorch's settings in a worker process."""

    threads: int
    default_dtype: torch.dtype
    default_device: torch.device

    @classmethod
    def of_hub(cls, threads: int) -> "ProcessSetup":
        """Return the settings of the hub's process, with another number of threads."""
        return cls(threads, torch.get_default_dtype(), torch.get_default_device())

    def apply(self, job: Job) -> None:
        """Apply the settings to this process, and call the job's `worker_init`."""
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.default_dtype)
        if self.default_device != torch.get_default_device():
            torch.set_default_device(self.default_device)
        if job.worker_init is not None:
            job.worker_init()


@dataclass(frozen=True, kw_only=True)
class WorkerSetup(RunData):
    """The inputs of a worker from a run, sent once."""

    process: ProcessSetup

    @classmethod
    def of(cls, run: RunData, threads: int, **more: Any) -> Self:
        """Return the setup of workers with this number of threads. `more`: fields of a subclass."""
        return cls(**vars(run), process=ProcessSetup.of_hub(threads), **more)


def learner_of(run: RunData, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> Learner:
    """Return the learner of this process, for a device and a clock. It does not load data ahead."""
    return Learner(run, device, clock)


def loading_learner_of(run: RunData, device: torch.device) -> Learner:
    """Return the learner of this process, which loads data ahead if the job has `load_workers`."""
    learner = learner_of(run, device)
    if run.job.load_workers:
        from oddlot.engines.processes.loading_processes import load_ahead

        load_ahead(learner, run.shards)
    return learner
