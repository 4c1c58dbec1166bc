"""CD-1 compared with its equations in numpy, with the same random numbers."""

from typing import Any

import numpy as np
import pytest
import torch

from oddlot.workloads.contrastive_divergence import Rbm, activated, cd1, reconstructed
from oddlot.workloads.digit_autoencoder import DigitNetwork, PreTraining

SAMPLES, VISIBLE, HIDDEN = 7, 6, 4


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("is_linear", [False, True])
def test_direction_equals_the_equations(is_linear: bool) -> None:
    torch.manual_seed(3)
    weight, c, b = (
        torch.randn(*shape, dtype=torch.float64) for shape in ((HIDDEN, VISIBLE), (HIDDEN,), (VISIBLE,))
    )
    v = torch.rand(SAMPLES, VISIBLE, dtype=torch.float64)
    torch.manual_seed(5)
    found, error = cd1(Rbm(weight, c, b), v, is_linear=is_linear, weight_decay=0.01)

    torch.manual_seed(5)
    noise = (torch.randn if is_linear else torch.rand)(SAMPLES, HIDDEN, dtype=torch.float64).numpy()
    w, hidden_bias, visible_bias, data = (one.numpy() for one in (weight, c, b, v))
    mean = data @ w.T + hidden_bias if is_linear else sigmoid(data @ w.T + hidden_bias)
    state = mean + noise if is_linear else (noise < mean).astype(float)
    again = sigmoid(state @ w + visible_bias)
    mean_again = again @ w.T + hidden_bias if is_linear else sigmoid(again @ w.T + hidden_bias)
    positive = np.mean([np.outer(h, x) for h, x in zip(mean, data, strict=True)], axis=0)
    negative = np.mean([np.outer(h, x) for h, x in zip(mean_again, again, strict=True)], axis=0)
    assert np.allclose(found.weight.numpy(), -(positive - negative) + 0.01 * w, atol=1e-12)
    assert np.allclose(found.hidden_bias.numpy(), -(mean - mean_again).mean(0), atol=1e-12)
    assert np.allclose(found.visible_bias.numpy(), -(data - again).mean(0), atol=1e-12)
    assert np.isclose(error.item(), ((data - again) ** 2).sum(1).mean())


def test_steps_lower_the_reconstruction_error() -> None:
    torch.manual_seed(0)
    data = torch.eye(VISIBLE).repeat(5, 1)
    rbm = Rbm(0.1 * torch.randn(8, VISIBLE), torch.zeros(8), torch.zeros(VISIBLE))

    def error() -> float:
        again = reconstructed(rbm, activated(rbm, data, is_linear=False))
        return (again - data).square().sum(1).mean().item()

    before = error()
    for _ in range(1000):
        for parameter, direction in zip(rbm, cd1(rbm, data, is_linear=False)[0], strict=True):
            parameter.sub_(direction, alpha=0.3)
    assert error() < 0.3 * before


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_mirror_and_copy_get_the_same_direction(layer: int) -> None:
    """The decoder stays the transpose of the encoder, and the classifier its copy."""
    torch.manual_seed(0)
    model = DigitNetwork((784, 20, 10, 5))
    batch = (torch.randint(0, 256, (9, 784), dtype=torch.uint8), torch.zeros(9))
    with torch.no_grad():
        found, losses = PreTraining(layer, is_linear=layer == 2, weight_decay=1e-3)(model, batch)
        for name, direction in found.items():
            model.get_parameter(name).sub_(direction)
    mirror = f"decoder.{2 - layer}"
    shared = {f"classifier.{layer}.{leaf}" for leaf in ("weight", "bias") if layer < 2}
    assert (
        found.keys()
        == {f"encoder.{layer}.weight", f"encoder.{layer}.bias", f"{mirror}.weight", f"{mirror}.bias"} | shared
    )
    assert set(losses) == {"loss"}
    for at in range(3):
        assert torch.equal(model.encoder[at].weight, model.decoder[2 - at].weight.T)  # type: ignore[arg-type]
    for at in range(2):
        assert torch.equal(model.encoder[at].weight, model.classifier[at].weight)  # type: ignore[arg-type]
        assert torch.equal(model.encoder[at].bias, model.classifier[at].bias)  # type: ignore[arg-type]


def test_paper_has_no_biases() -> None:
    model = DigitNetwork((784, 20, 10), is_linear=False)
    batch = (torch.zeros(3, 784, dtype=torch.uint8), torch.zeros(3))
    found, _ = PreTraining(1, is_linear=False, has_biases=False)(model, batch)
    assert found.keys() == {"encoder.1.weight", "decoder.0.weight", "classifier.1.weight"}
