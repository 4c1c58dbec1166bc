"""Setting up a worker's process, on any engine of real processes."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from oddlot.train.data import Cuts
from oddlot.train.flat_buffer import Layout
from oddlot.train.job import Job
from oddlot.train.learner import Learner
from oddlot.wire.codec import Codec


@dataclass(frozen=True)
class ProcessSetup:
    """PyTorch's settings in a worker's process."""

    threads: int
    default_dtype: torch.dtype
    default_device: torch.device

    @classmethod
    def of_hub(cls, threads: int) -> "ProcessSetup":
        """Return the settings of the hub's process, with another number of threads."""
        return cls(threads, torch.get_default_dtype(), torch.get_default_device())

    def apply(self, job: Job) -> None:
        """Set PyTorch up as the hub's process has it, and call the job's `worker_init`."""
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.default_dtype)
        if self.default_device != torch.get_default_device():
            torch.set_default_device(self.default_device)
        if job.worker_init is not None:
            job.worker_init()


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """What a worker needs of a run, sent once."""

    job: Job
    layout: Layout
    constants: Mapping[str, torch.Tensor]
    """Tensors outside of blocks (`Layout.constants`)."""
    codec: Codec | None
    seed: int
    shards: Cuts
    keep_shards: bool
    samples: int
    """Length of the hub's training data."""
    process: ProcessSetup

    def learner(self, device: torch.device) -> Learner:
        """Return the learner of this process, which computes on a device."""
        return Learner(
            self.job,
            self.layout,
            self.constants,
            self.seed,
            self.shards,
            device,
            time.perf_counter,
            self.keep_shards,
            self.samples,
        )
