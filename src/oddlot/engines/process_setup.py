"""Setting up a worker's process."""

from dataclasses import dataclass

import torch

from oddlot.train.job import Job


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
