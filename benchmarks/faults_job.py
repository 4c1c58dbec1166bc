"""The job of `benchmarks.faults`, in a separate module, so that workers do not import the benchmark."""

import time

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import oddlot
from oddlot.workloads import load_workload

BATCH, STEP_SECONDS = 64, 0.04


def network() -> nn.Module:
    """Return a small network: the wait is nearly all of a step's time."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


class Step:
    """A training step that waits instead of using an accelerator."""

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of a batch."""
        time.sleep(STEP_SECONDS)
        return cross_entropy(model(batch[0].float() / 255), batch[1])


def outputs(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return outputs and labels for the accuracy."""
    return model(batch[0].float() / 255), batch[1]


def job() -> oddlot.Job:
    """Return the MNIST job. Raises UsageError if its files are missing."""
    task = load_workload("mnist", {})
    return oddlot.Job(
        network,
        task.train_data,
        training_step=Step(),
        eval_data=task.eval_data,
        metrics={"accuracy": oddlot.accuracy},
        predict=outputs,
        optimizer=oddlot.SGD(lr=0.05, momentum=0.9),
        batch_size=BATCH,
        name="mnist",
        device="cpu",
    )


def material() -> tuple[nn.Module, Tensor, Tensor, int]:
    """Return the model, inputs, labels and batch size of a DistributedDataParallel replica, with random images."""
    return network(), torch.rand(10 * BATCH, 28, 28), torch.randint(0, 10, (10 * BATCH,)), BATCH
