"""Small networks with the parameters of `digit_autoencoder`, and jobs and runs that train them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import oddlot
from oddlot import Job, Machine, Simulated, Synchronous
from oddlot.demo.digit_model import DigitModel
from oddlot.faults import Chaos, Fault
from oddlot.workloads.digit_autoencoder import digit_autoencoder

ENCODER = (784, 40, 30)
SHARED = {"classifier": (40, 10)}
"""A classifier on the first hidden layer."""


class Network(nn.Module):
    """A network for digits with these widths. The classifier reads the pixels, or the first hidden layer."""

    def __init__(
        self,
        encoder: tuple[int, ...] = ENCODER,
        classifier: tuple[int, ...] = (784, 24, 10),
    ) -> None:
        super().__init__()
        widths = {"encoder": encoder, "decoder": encoder[::-1], "classifier": classifier}
        for part, sizes in widths.items():
            setattr(self, part, nn.ModuleList([nn.Linear(*pair) for pair in pairwise(sizes)]))

    def encode(self, pixels: Tensor) -> Tensor:
        return through(self.encoder, pixels)

    def decode(self, code: Tensor) -> Tensor:
        return torch.sigmoid(through(self.decoder, code))

    def classify(self, pixels: Tensor) -> Tensor:
        parts: Any = self
        shared = parts.classifier[0].in_features != 784
        return through(parts.classifier, torch.sigmoid(parts.encoder[0](pixels)) if shared else pixels)

    def forward(self, pixels: Tensor) -> Tensor:
        return torch.cat([self.classify(pixels), self.decode(self.encode(pixels))], 1)


def through(layers: Any, values: Tensor) -> Tensor:
    for number, layer in enumerate(layers):
        values = layer(torch.sigmoid(values) if number else values)
    return values


def network(**widths: tuple[int, ...]) -> Network:
    """Return a network with large random weights: its outputs differ clearly between inputs."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        made = Network(**widths)
        for parameter in made.parameters():
            parameter.data.mul_(4)
    return made


def arrays(module: nn.Module) -> dict[str, NDArray[np.float32]]:
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


def model(**widths: tuple[int, ...]) -> DigitModel:
    return DigitModel.of(arrays(network(**widths)), "the test")


def loaded(found: DigitModel, **widths: tuple[int, ...]) -> Network:
    """Return a module with the weights of a model."""
    made = Network(**widths)
    state = {
        f"{part}.{number}.{name}": torch.from_numpy(getattr(layer, name))
        for part, layers in found.parts()
        for number, layer in enumerate(layers)
        for name in ("weight", "bias")
    }
    made.load_state_dict(state)
    return made


def digits_job() -> Job:
    """Return a job that trains a small network on random pixels."""
    stream = torch.Generator().manual_seed(0)
    pixels = torch.rand(48, 784, generator=stream)
    return Job(Network, (pixels, pixels), loss=loss, batch_size=4, name="digit_autoencoder")


def loss(outputs: Tensor, pixels: Tensor) -> Tensor:
    return (outputs[:, 10:] - pixels).square().mean()


def train(folder: Path, job: Job | None = None) -> oddlot.Run:
    """Train on three simulated machines. The second is killed in its third task."""
    on = Simulated([Machine(name, 0.01) for name in ("a", "b", "c")])
    chaos = Chaos([Fault("kill", "b", at_seconds=(0.1,))])
    return oddlot.fit(job or digits_job(), Synchronous(), on, until="epochs>=3", out=folder, chaos=chaos)


def train_autoencoder(folder: Path, **options: int) -> oddlot.Run:
    """Run the workload `digit_autoencoder` with a small network on a few of the packaged digits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ODDLOT_DATA", raising=False)
        epochs: dict[str, Any] = {
            "pretrain_epochs": 1,
            "autoencoder_epochs": 1,
            "classifier_epochs": 8,
            **options,
        }
        stages = digit_autoencoder(widths=(784, 24, 30), limit=512, batch_size=16, **epochs)
    on = Simulated([Machine("a", 0.01)])
    return oddlot.fit_stages(stages, Synchronous(), on, out=folder, quiet=True)
