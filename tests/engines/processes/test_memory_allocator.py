"""A worker keeps the memory of a step for the next one."""

import resource
import sys

import pytest
import torch
from torch import Tensor, nn

from oddlot import Job, Local, Synchronous, fit
from oddlot.core.events import Arrived

PAGES = 2_000
"""Pages of the memory of a step."""


class Roomy(nn.Module):
    """A model with a step that allocates blocks of several sizes, and logs its page faults as a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.linear(inputs)
        return output


def step(model: nn.Module, batch: tuple[Tensor]) -> dict[str, Tensor]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(pages * 1024) for pages in (100, 300, 600, PAGES - 1000)]  # 4 bytes each
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    loss: Tensor = model(batch[0]).mean() * blocks[0][0]
    return {"loss": loss, "faults": torch.tensor(float(faults))}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is of Linux")
def test_later_steps_have_few_page_faults() -> None:
    """The first steps get memory from the system, and later ones use it again."""
    job = Job(Roomy, (torch.ones(40, 1),), training_step=step, batch_size=2, device="cpu")
    run = fit(job, Synchronous(), Local(workers=1), until="epochs>=1", quiet=True)
    updates = [record.event.update for record in run.records if isinstance(record.event, Arrived)]
    faults = [update.losses["faults"] for update in updates if update.losses]
    assert len(faults) == 20
    assert max(faults) > PAGES / 2, "the first step gets its memory from the system"
    assert sorted(faults)[10] < PAGES / 10
