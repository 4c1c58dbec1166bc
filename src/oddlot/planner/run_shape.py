"""The sizes of a run that is simulated without gradients."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oddlot.core.support.errors import JobError
from oddlot.core.support.validation import AtLeastOne, check_settings
from oddlot.train.job import Job


@dataclass(frozen=True)
class RunShape:
    """The sizes that time and cost of a run depend on. Use its job with `Simulated(..., computes=False)`."""

    samples: AtLeastOne
    """Samples of an epoch."""
    batch: AtLeastOne = 1
    """Samples of a minibatch."""
    model_bytes: AtLeastOne = 4
    """Bytes of the weights, as float32. An update without a codec has the same size."""
    sample_bytes: AtLeastOne = 4
    """Bytes of a sample. They count if machines receive their samples (`shards`)."""

    def __post_init__(self) -> None:
        check_settings(self)

    def job(self) -> Job:
        """Return a job of these sizes that cannot be trained. Its data occupy no memory."""
        rows = torch.zeros(1, 1, dtype=torch.uint8).expand(self.samples, self.sample_bytes)
        numbers = -(-self.model_bytes // 4)
        return Job(
            lambda: nn.Linear(numbers, 1, bias=False),
            (rows,),
            training_step=_not_trained,
            batch_size=self.batch,
        )


def _not_trained(*_: Any) -> Tensor:
    message = "the job of a RunShape has no gradients: simulate it with computes=False"
    raise JobError(message, "shape_without_gradients")
