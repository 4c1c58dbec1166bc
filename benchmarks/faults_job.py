"""The job of `benchmarks.faults`, in a file of its own: workers import it, and should not import the benchmark."""

import time

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import oddlot
from oddlot.workloads import load_workload

BATCH, STEP_SECONDS = 64, 0.04


def network() -> nn.Module:
    """A small one, so that the wait is nearly all of a step."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


class Step:
    """A gradient, and a wait that stands for an accelerator."""

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss of a batch."""
        time.sleep(STEP_SECONDS)
        return cross_entropy(model(batch[0].float() / 255), batch[1])


def outputs(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """For the accuracy."""
    return model(batch[0].float() / 255), batch[1]


def job() -> oddlot.Job:
    """MNIST. UsageError: its files are not there."""
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
    """What a replica of DistributedDataParallel needs: as many pictures in the same shape."""
    return network(), torch.rand(10 * BATCH, 28, 28), torch.randint(0, 10, (10 * BATCH,)), BATCH
