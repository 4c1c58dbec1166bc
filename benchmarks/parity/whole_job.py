"""Samples per second of a whole job: loading, augmentation, training, evaluation and checkpoints."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from benchmarks.parity.exactness import Arrays
from benchmarks.report import show
from oddlot import SGD, Job, Local, Synchronous, accuracy, fit
from oddlot.core.commands import Start
from oddlot.core.support.text import counted
from oddlot.engines.base import cores

BATCH, PADDING = 128, 2
RATE, MOMENTUM = 0.02, 0.9
PLAIN = ((0, cores()), (0, 1), (2, 1), (2, cores()))
"""Loading processes and threads of a plain loop."""
OURS = ((1, 0, cores()), (1, 1, 1), (cores(), 0, 1))
"""Workers, loading processes of each, and threads of each. All workers together have the batch of a plain loop."""
SEED = 0


class Augmented(Dataset[Any]):
    """Images with a random shift and a random brightness, as a script's dataset has them."""

    def __init__(self, arrays: Arrays) -> None:
        self.images, self.labels = (torch.as_tensor(array) for array in arrays)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        padded = nn.functional.pad(self.images[index], (PADDING,) * 4)
        down, right = torch.randint(2 * PADDING + 1, (2,)).tolist()
        image = padded[down : down + 28, right : right + 28]
        return image * (0.8 + 0.4 * torch.rand(())), self.labels[index]


def network() -> nn.Module:
    """Return a network for 28 x 28 pixels. A step of a minibatch takes 20 to 40 ms on a CPU core."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        *(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 5 * 5, 10)),
    )


def whole_job_over_plain(train: Arrays, test: Arrays, epochs: int, pairs: int) -> float:
    """Print the samples per second of plain loops and of oddlot, and return the ratio of the best ones.

    The time is from the first minibatch to the saved model, without the start of processes. Runs alternate, so that a
    change of the machine's speed affects both.
    """
    data, evaluated = Augmented(train), tuple(torch.as_tensor(array) for array in test)
    runs: dict[str, Callable[[], float]] = {
        **{
            f"plain, num_workers={count}, {counted(threads, 'thread')}": partial(
                _plain, data, evaluated, epochs, count, threads
            )
            for count, threads in PLAIN
        },
        **{
            f"oddlot, {counted(workers, 'worker')}, load_workers={count}, {counted(threads, 'thread')} each": partial(
                _ours, data, evaluated, epochs, workers, count, threads
            )
            for workers, count, threads in OURS
        },
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(pairs):
        for name, run in runs.items():
            seconds[name].append(run())
    speeds = {name: epochs * len(data) / median(each) for name, each in seconds.items()}
    show(
        f"whole job: {epochs} epochs of {len(data):,} augmented images, an evaluation and a checkpoint each",
        ["loop", "samples per second"],
        [[name, f"{speed:,.0f}"] for name, speed in speeds.items()],
    )
    best = {
        kind: max(speed for name, speed in speeds.items() if name.startswith(kind))
        for kind in ("plain", "oddlot")
    }
    return best["oddlot"] / best["plain"]


def _plain(data: Augmented, test: tuple[Tensor, ...], epochs: int, count: int, threads: int) -> float:
    """Train in a plain loop, and return its seconds."""
    torch.set_num_threads(threads)
    torch.manual_seed(SEED)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    loader = DataLoader(data, BATCH, shuffle=True, num_workers=count, persistent_workers=count > 0)
    if count:
        iter(loader)  # starts the processes
    began = time.perf_counter()
    with TemporaryDirectory() as folder:
        for epoch in range(epochs):
            model.train()
            for inputs, targets in loader:
                optimizer.zero_grad()
                cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]  # PyTorch's
                optimizer.step()
            model.eval()
            with torch.no_grad():
                outputs = torch.cat([model(rows) for rows in torch.split(test[0], 256)])
            accuracy(outputs, test[1])
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, Path(folder) / f"{epoch}.pt")
        return time.perf_counter() - began


def _ours(
    data: Augmented, test: tuple[Tensor, ...], epochs: int, workers: int, count: int, threads: int
) -> float:
    """Train with oddlot, and return its seconds after the start of processes."""
    job = Job(
        network,
        data,
        cross_entropy,
        eval_data=test,
        metrics={"accuracy": accuracy},
        optimizer=SGD(RATE, MOMENTUM),
        batch_size=BATCH // workers,
        load_workers=count,
        device="cpu",
    )
    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = fit(
            job,
            Synchronous(),
            Local(workers, threads=threads),
            until=f"epochs>={epochs}",
            out=Path(folder) / "run",
            checkpoint_every="1 epochs",
            seed=SEED,
            quiet=True,
        )
        seconds = time.perf_counter() - began
        starts = (
            record.now for record in run.records if any(isinstance(one, Start) for one in record.actions)
        )
        return seconds - next(starts)
