"""Moments stored as bfloat16 with stochastic rounding: unbiased, and never stuck."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from oddlot.sparse import Adam, SampledLinear, SparseInputLinear, Uniform
from oddlot.sparse.kernels.bf16 import narrowed, widened
from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.row_operations import adam
from oddlot.sparse.optimizers import Moments
from tests.sparse.layers import threads

pytestmark = pytest.mark.usefixtures("one_thread")
COLUMNS, ROWS = 64, 40


@kernel
def kept(numbers, noise, out):  # type: ignore[no-untyped-def]  # of kernels
    for i in range(len(numbers)):
        out[i] = narrowed(numbers[i], out[i], noise[i])


@kernel
def read(bits, out):  # type: ignore[no-untyped-def]
    for i in range(len(bits)):
        out[i] = widened(bits[i])


def as_float(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_float32_is_rounded_to_a_neighboring_bfloat16() -> None:
    numbers = np.array([1.0, -3.14159, 1e-30, 0.0, -0.0, np.inf, -np.inf, 65504.5], np.float32)
    low, high = np.empty(8, np.uint16), np.empty(8, np.uint16)
    kept(numbers, np.zeros(8, np.uint32), low)
    kept(numbers, np.full(8, 0xFFFFFFFF, np.uint32), high)
    exact = torch.from_numpy(numbers).bfloat16().float().numpy()
    assert ((as_float(low) == exact) | (as_float(high) == exact)).all(), "PyTorch's is the nearer one"
    assert (np.abs(as_float(low)) <= np.abs(numbers)).all()
    assert (np.abs(as_float(high)) >= np.abs(numbers)).all()
    back = np.empty(8, np.float32)
    read(low, back)
    assert (back == as_float(low)).all()


def moments(steps: int, gradient: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the first and second moments after steps with the same gradient."""
    first, second = np.zeros((2, 4096), np.uint16)
    weight, given = np.zeros(4096, np.float32), np.full(4096, gradient, np.float32)
    for step in range(1, steps + 1):
        adam(7, weight, given, first, second, Adam().numbers(step))
    return as_float(first), as_float(second)


def test_second_moment_is_unbiased() -> None:
    """A step changes it by a thousandth, a quarter of the resolution of bfloat16. With rounding to nearest, it would
    not change."""
    _, found = moments(3000, 0.5)
    assert found.mean() == pytest.approx(0.25 * (1 - 0.999**3000), rel=0.005)
    assert 0 < found.std() < 0.1 * found.mean()


def test_neighboring_values_are_rounded_independently() -> None:
    _, found = moments(50, 0.5)
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.1


def test_both_moments_are_rounded_independently() -> None:
    """A single step rounds the first and the second moment independently, once each."""
    first, second = moments(1, 0.507)
    assert min(first.std(), second.std()) > 0
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


def trained(optimizer: Adam, steps: int = 60) -> SampledLinear:
    layer = SampledLinear(COLUMNS, ROWS, Uniform(8), optimizer, seed=1)
    chance = torch.Generator().manual_seed(3)
    for _ in range(steps):
        hidden = torch.randn(16, COLUMNS, generator=chance).requires_grad_()
        layer(hidden, torch.randint(0, ROWS, (16,), generator=chance)).backward()
    return layer


@pytest.mark.parametrize("decay", [False, True])
def test_weights_with_bf16_moments_are_close_to_float32(decay: bool) -> None:
    begun = trained(Adam(), 0).weight
    exact = trained(Adam(decay=decay)).weight
    found = trained(Adam(decay=decay, moments="bf16")).weight
    assert 0 < (found - exact).norm() < 0.03 * (exact - begun).norm()


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
def test_two_layers_are_bitwise_equal_on_any_number_of_threads(moments: Moments) -> None:
    """The gradient of the hidden vectors trains the lower layer, and is summed in a fixed order."""
    ends = list[torch.Tensor]()
    starts, chance = np.arange(17) * 5, np.random.default_rng(1)
    features, values = chance.integers(0, 50, 80), chance.random(80).astype(np.float32)
    for count in (1, 2, 3):
        first = SparseInputLinear(50, COLUMNS, Adam(moments=moments))
        second = SampledLinear(COLUMNS, 500, Uniform(40), Adam(moments=moments))
        with threads(count):
            for _ in range(12):
                second(torch.relu(first(starts, features, values)), torch.arange(16)).backward()
        ends += [first.weight.detach(), second.weight.detach()]
    for at in (2, 4):
        assert torch.equal(ends[0], ends[at])
        assert torch.equal(ends[1], ends[at + 1])
