"""Check sample accounting with the weights themselves: each weight counts how often its sample is in the model.

The loss of a sample is its own weight, so an update lowers the weights of its samples, and no others, by the learning
rate / the batch size. Workers are killed, frozen, and send NaN. A lost sample would count too little, and a sample that
is merged twice too much.
"""

import torch
from torch import Tensor, nn

import oddlot
from oddlot.faults import Chaos, Fault

SAMPLES, BATCH, EPOCHS = 600, 10, 20


class Counts(nn.Module):
    """A weight for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))

    def forward(self, samples: Tensor) -> Tensor:
        return self.weight[samples]


job = oddlot.Job(
    Counts,
    (torch.arange(SAMPLES), torch.zeros(SAMPLES)),
    lambda outputs, _: outputs.mean(),
    optimizer=oddlot.SGD(lr=1.0),
    batch_size=BATCH,
    device="cpu",
)
chaos = Chaos(
    [
        Fault("kill", at_versions=(50, 200, 500)),
        Fault("freeze", at_versions=(300,), for_seconds=0.3),
        Fault("corrupt", at_versions=(100, 400, 700)),
    ]
)
run = oddlot.fit(
    job,
    oddlot.Asynchronous(damping=0.0),  # each update counts fully, however late it is
    oddlot.Local(3, threads=1),
    until=f"epochs>={EPOCHS}",
    chaos=chaos,
)
counts = -BATCH * run.model.get_parameter("weight")
lost, wasted = run.summary["workers_lost"], run.summary["wasted"]
print(f"{lost} workers were lost, and {wasted['invalid']} samples had NaN. Both were computed again.")
print(f"Each of the {SAMPLES} samples is in the model {counts.min():.3f} to {counts.max():.3f} times.")
