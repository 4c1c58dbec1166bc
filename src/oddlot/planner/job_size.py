"""The size of a job, to recognize another version of it."""

from typing import NamedTuple

from oddlot.data.batches import Batches
from oddlot.train.job import Job


class JobSize(NamedTuple):
    """The size of a job."""

    samples: int
    """Number of training samples."""
    parameters: int
    """Number of parameters of the model."""

    @classmethod
    def of(cls, job: Job) -> "JobSize":
        """Return the size of a job."""
        parameters = sum(parameter.numel() for parameter in job.model().parameters())
        return cls(len(Batches(job.train_data, job.collate)), parameters)
