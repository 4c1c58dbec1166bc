"""The inputs of a learner. Importing them loads neither numpy nor PyTorch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from oddlot.data.batches import Cuts
    from oddlot.model.flat_buffer import Layout
    from oddlot.train.job import Job


@dataclass(frozen=True, kw_only=True)
class LearnerInputs:
    """The inputs of a `Learner`."""

    job: "Job"
    layout: "Layout"
    constants: "Mapping[str, Tensor]"
    """Values of tensors outside of blocks, from the hub (`Layout.constants`)."""
    seed: int = 0
    shards: "Cuts" = 1
    """Shards of the ledger."""
    samples: int | None = None
    """Positions of an epoch at the start of the run, at the hub. If None, those in this process."""
    keep_shards: bool = True
    """Whether shards stay open between tasks."""
