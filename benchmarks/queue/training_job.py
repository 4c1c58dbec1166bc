"""A short training for the benchmark of the queue: `python training_job.py STARTS STEPS`.

It first adds a line with its job, its attempt and its process id to the file STARTS.
"""

import fcntl
import os
import sys
from pathlib import Path


def record_start(path: Path) -> None:
    """Add a line to the file, under a lock."""
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        line = f"{os.environ['ODDLOT_QUEUE_JOB']} {os.environ['ODDLOT_QUEUE_ATTEMPT']} {os.getpid()}\n"
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def train(steps: int) -> float:
    """Train a small network on random data, and return its last loss."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(256, 64), torch.randint(10, (256,))
    loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return float(loss.detach())


if __name__ == "__main__":
    record_start(Path(sys.argv[1]))
    print(f"loss {train(int(sys.argv[2])):.4f}")
