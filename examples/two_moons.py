"""A custom job on two local workers: a network that classifies points of two half moons.

A script that is never imported needs no `if __name__ == "__main__"`: workers receive the job, not the program.
"""

import numpy as np
import torch
from torch import nn

import oddlot


def moons(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy points on two interlocking half circles, and the number of each point's half circle."""
    rng = np.random.default_rng(seed)
    which = rng.integers(0, 2, count)
    angle = np.pi * rng.random(count)
    x = np.where(which, 1 - np.cos(angle), np.cos(angle))
    y = np.where(which, 0.5 - np.sin(angle), np.sin(angle))
    points = np.stack([x, y], axis=1) + 0.1 * rng.standard_normal((count, 2))
    return torch.tensor(points, dtype=torch.float32), torch.tensor(which)


job = oddlot.Job(
    model=lambda: nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)),
    train_data=moons(2000, seed=1),
    loss=nn.functional.cross_entropy,
    eval_data=moons(500, seed=2),
    metrics={"accuracy": oddlot.accuracy},
    optimizer=oddlot.SGD(lr=0.1, momentum=0.9),
    batch_size=25,
)
run = oddlot.fit(job, oddlot.Synchronous(), engine=oddlot.Local(workers=2), until="epochs>=10")

print(
    f"ended by {run.ended}: accuracy {run.accuracy:.3f} on the evaluation set, after {60 * run.hours:.2f} minutes"
)
for row in run.history[:3]:
    print(f"  version {row['versions']:.0f}: loss {row['loss']:.3f}, accuracy {row['accuracy']:.3f}")

with torch.no_grad():
    upper, lower = run.model(torch.tensor([[0.0, 1.0], [1.0, -0.5]])).argmax(dim=1).tolist()
print(f"the top of the upper moon is on moon {upper}, the bottom of the lower one on moon {lower}")
print(f"{run.summary['samples_merged']} samples were used, {run.summary['samples_wasted']} wasted")
