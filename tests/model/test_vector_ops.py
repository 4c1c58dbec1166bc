"""Weighted sums and finite checks."""

from itertools import product

import pytest
import torch

from oddlot.model import vector_ops as kernels

NAN, INF = float("nan"), float("inf")


@pytest.fixture(params=["pytorch", "compiled"])
def mix(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> kernels.Mix:
    monkeypatch.setattr(kernels, "LARGE_NUMBERS", 1 if request.param == "compiled" else 1 << 40)
    return kernels.mixer(torch.zeros(4))


def test_compiled_kernel_is_used_for_large_aligned_float32() -> None:
    large = torch.zeros(1).expand(kernels.LARGE_NUMBERS)
    assert kernels.mixer(large) is not kernels.mix
    assert kernels.mixer(large.double()) is kernels.mix
    assert kernels.mixer(large[1:]) is kernels.mix


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("numbers", [0, 1, 127, 128, 1000])
@pytest.mark.parametrize("keep", [0.0, 1.0, -0.25])
def test_mix_equals_the_weighted_sum(mix: kernels.Mix, count: int, numbers: int, keep: float) -> None:
    torch.manual_seed(count)
    out, tensors = torch.randn(numbers), [torch.randn(numbers) for _ in range(count)]
    shares = [0.5 + i for i in range(count)]
    wide = [share * tensor.double() for share, tensor in zip(shares, tensors, strict=True)]
    expected = (keep * out.double() + sum(wide, start=torch.zeros(()))).float()
    mix(out, keep, tensors, shares)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_mix_without_keep_overwrites_nan(mix: kernels.Mix) -> None:
    out = torch.full((200,), NAN)
    mix(out, 0.0, [torch.ones(200)], [2.0])
    assert out.tolist() == [2.0] * 200


def test_bfloat16_is_summed_in_float32() -> None:
    out = torch.zeros(3)
    kernels.mix(out, 0.0, [torch.ones(3, dtype=torch.bfloat16)] * 300, [1 / 300] * 300)
    torch.testing.assert_close(out, torch.ones(3), rtol=1e-5, atol=0)


def test_chunks_cover_every_number_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "CHUNK_NUMBERS", 4)
    spans = list(kernels.chunks(10, torch.device("cpu")))
    assert [(span.start, span.stop) for span in spans] == [(0, 4), (4, 8), (8, 10)]
    assert not list(kernels.chunks(0, torch.device("cpu")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_single_bad_number_is_found(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "CHUNK_NUMBERS", 1000)
    for bad, place in product((NAN, INF, -INF), (0, 999, 2499)):
        numbers = torch.ones(2500, dtype=dtype)
        assert kernels.is_finite(numbers)
        numbers[place] = bad
        assert not kernels.is_finite(numbers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_is_finite_handles_overflow_and_cancelling_infinities(dtype: torch.dtype) -> None:
    assert kernels.is_finite(torch.full((100,), torch.finfo(dtype).max, dtype=dtype))
    assert not kernels.is_finite(torch.tensor([INF, -INF, 1.0], dtype=dtype))
    assert kernels.is_finite(torch.zeros(0, dtype=dtype))
