"""Samples per second of a whole job: loading, augmentation, training, evaluation and checkpoints."""

import time
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from benchmarks.parity.exactness import Arrays, convolutional
from benchmarks.report import show
from oddlot import SGD, Job, Local, Synchronous, accuracy, fit
from oddlot.core.support.text import counted
from oddlot.engines.base import cores

BATCH, PADDING = 64, 2
RATE, MOMENTUM = 0.02, 0.9
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


def whole_job_over_plain(train: Arrays, test: Arrays, epochs: int, pairs: int) -> float:
    """Print the samples per second of plain loops and of oddlot, and return the ratio of the best ones.

    Runs alternate, so that a change of the machine's speed affects both.
    """
    data, evaluated = Augmented(train), tuple(torch.as_tensor(array) for array in test)
    plain = ((0, cores()), (2, cores()), (2, 1))
    runs = {
        **{
            f"plain, num_workers={count}, {counted(threads, 'thread')}": partial(
                _plain, data, evaluated, epochs, count, threads
            )
            for count, threads in plain
        },
        **{
            f"oddlot, load_workers={count}": partial(_ours, data, evaluated, epochs, count)
            for count in (0, 1)
        },
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(pairs):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
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


def _plain(data: Augmented, test: tuple[Tensor, ...], epochs: int, count: int, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(SEED)
    model = convolutional()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    loader = DataLoader(data, BATCH, shuffle=True, num_workers=count, persistent_workers=count > 0)
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


def _ours(data: Augmented, test: tuple[Tensor, ...], epochs: int, count: int) -> None:
    job = Job(
        convolutional,
        data,
        cross_entropy,
        eval_data=test,
        metrics={"accuracy": accuracy},
        optimizer=SGD(RATE, MOMENTUM),
        batch_size=BATCH,
        load_workers=count,
        device="cpu",
    )
    with TemporaryDirectory() as folder:
        fit(
            job,
            Synchronous(),
            Local(workers=1),
            until=f"epochs>={epochs}",
            out=Path(folder) / "run",
            checkpoint_every="1 epochs",
            seed=SEED,
            quiet=True,
        )
