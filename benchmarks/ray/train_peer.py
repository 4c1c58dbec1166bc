"""The same job with Ray Train: `TorchTrainer` with gloo, checkpoints, and its options against preemptions."""

import copy
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.ray.job import BATCH, EVERY, Rate, Step, network
from oddlot.core.support.errors import UsageError
from oddlot.workloads.digits import digits

OPTIONS = {
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "1",
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "10",
}
RESIZE_SECONDS = 2.0
"""Seconds between an elastic group's checks for more workers."""


def check() -> None:
    """Raise UsageError if Ray Train is not installed."""
    try:
        import ray.train  # noqa: F401   # only tests the import
    except ImportError as error:
        text = "Ray Train is not installed. Install it: pip install 'ray[train]'."
        raise UsageError(text, "no_ray_train", package="ray[train]", reason=str(error)) from error


def train_loop(config: dict[str, Any]) -> None:
    """Train on one worker. Positions in the shuffled epochs are counted over all workers."""
    import ray.train
    import ray.train.torch

    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(network())
    rate: Rate = config["rate"]
    optimizer = torch.optim.SGD(model.parameters(), lr=rate.lr, momentum=rate.momentum)
    images, labels = (torch.as_tensor(part) for part in digits().train_data)
    total, done, steps = config["epochs"] * len(labels), 0, 0
    bare = model.module if hasattr(model, "module") else model
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / "state.pt")
        bare.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["done"]
    step = Step(Path(config["notes"]), config["seconds"])
    order = shuffled(config["epochs"], len(labels))
    while done < total:
        rows = order[done + rank * BATCH : done + (rank + 1) * BATCH]
        rows = rows if len(rows) else order[:BATCH]  # the last step needs all workers
        optimizer.zero_grad()
        step(model, (images[rows], labels[rows])).backward()  # type: ignore[no-untyped-call]  # untyped in PyTorch
        optimizer.step()
        before, done, steps = done, done + world * BATCH, steps + 1
        if rank == 0 and done // (EVERY * BATCH) > before // (EVERY * BATCH):
            _evaluate(bare, Path(config["accuracies"]))
        if steps % config["checkpoint_steps"] == 0 or done >= total:
            with tempfile.TemporaryDirectory() as folder:
                kept = None
                if rank == 0:
                    state = {"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
                    torch.save(state, Path(folder) / "state.pt")
                    kept = ray.train.Checkpoint.from_directory(folder)
                ray.train.report({"done": done, "accuracy": accuracy(bare)}, checkpoint=kept)


def shuffled(epochs: int, samples: int, seed: int = 0) -> torch.Tensor:
    """Return the order of the samples in all epochs."""
    chances = (torch.Generator().manual_seed(1_000 * seed + epoch) for epoch in range(epochs))
    return torch.cat([torch.randperm(samples, generator=chance) for chance in chances])


def _evaluate(model: torch.nn.Module, notes: Path) -> None:
    """Write the time and the accuracy to a file, in a thread, so that steps do not wait."""
    now, kept = time.time(), copy.deepcopy(model)

    def note() -> None:
        with notes.open("a") as file:
            file.write(f"{now} {accuracy(kept)}\n")

    threading.Thread(target=note).start()


def accuracies(folder: Path) -> list[tuple[float, float]]:
    """Return the times, in Unix seconds, and the accuracies that a run has written."""
    lines = (folder / "accuracies").read_text().splitlines()
    return sorted((float(now), float(found)) for now, found in (line.split() for line in lines))


def accuracy(model: torch.nn.Module) -> float:
    """Return the accuracy on the evaluation set."""
    images, labels = (torch.as_tensor(part) for part in digits().eval_data)
    with torch.no_grad():
        return float((model(images.float() / 16).argmax(1) == labels).float().mean())


def fit(
    folder: Path, epochs: int, seconds: float, elastic: bool, checkpoint_seconds: float, rate: Rate
) -> dict[str, Any]:
    """Train to the end, and return the last metrics. `folder` receives notes and checkpoints."""
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer

    os.environ.update(OPTIONS)
    (folder / "notes").mkdir()
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={
            "epochs": epochs,
            "seconds": seconds,
            "notes": str(folder / "notes"),
            "accuracies": str(folder / "accuracies"),
            "rate": rate,
            "checkpoint_steps": round(checkpoint_seconds / seconds),
        },
        scaling_config=ray.train.ScalingConfig(
            num_workers=(1, 2) if elastic else 2,
            resources_per_worker={"CPU": 1},
            elastic_resize_monitor_interval_s=RESIZE_SECONDS,
        ),
        torch_config=TorchConfig(backend="gloo"),
        run_config=ray.train.RunConfig(
            name="peer",
            storage_path=str(folder / "storage"),
            failure_config=ray.train.FailureConfig(
                max_failures=-1, max_preemption_failures=-1, relax_collectives_on_preemption=True
            ),
        ),
    )
    metrics: dict[str, Any] = trainer.fit().metrics
    return metrics
