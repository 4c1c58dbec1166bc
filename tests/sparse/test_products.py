"""8-bit products, compared with float32."""

import numpy as np
import pytest

from oddlot.sparse import products
from oddlot.sparse.products import Product, rounded
from oddlot.sparse.threads import Crew


@pytest.mark.parametrize("threads", [1, 2])
def test_rounding_error_is_at_most_half_a_step(threads: int) -> None:
    rows = np.random.default_rng(1).standard_normal((37, 19)).astype(np.float32)
    rows *= np.logspace(-20, 20, 37, dtype=np.float32)[:, None]
    whole, scales = rounded(Crew(threads), rows)
    assert (np.abs(whole.astype(int)).max(1) == 127).all()
    assert (np.abs(whole * scales[:, None] - rows) <= 0.5001 * scales[:, None]).all()


def test_rows_of_zeros_and_nan_are_rounded_to_zero() -> None:
    rows = np.zeros((4, 5), np.float32)
    rows[1], rows[2, 1], rows[3] = np.nan, np.inf, 1e-45
    whole, scales = rounded(Crew(1), rows)
    assert not whole.any()
    assert scales[[0, 3]] == pytest.approx(0)
    assert np.isinf(scales[2])
    assert rounded(Crew(1), rows[:0])[0].shape == (0, 5)


@pytest.mark.parametrize("in_bytes", [True, False])
@pytest.mark.parametrize(("vectors", "rows", "columns"), [(1, 1, 1), (3, 40, 5), (256, 300, 128)])
def test_products_approximate_float32(
    in_bytes: bool, vectors: int, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding errors of 8-bit products are random, so their sum grows with the square root of the columns."""
    monkeypatch.setattr(products, "has_bytes", lambda: in_bytes)
    chance = np.random.default_rng(2)
    own, matrix = (chance.standard_normal((count, columns)).astype(np.float32) for count in (vectors, rows))
    product = Product(Crew(), matrix)
    for some in (own, own[: vectors // 2 + 1], own):
        with product.of(some) as (numbers, scales):
            found = numbers * scales[:, None] * product.scales
        assert found.shape == (len(some), rows)
        off = 0.02 * np.sqrt(columns) if in_bytes else 1e-4
        assert np.sqrt(((found - some @ matrix.T) ** 2).mean()) < off


def test_largest_sums_do_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "has_bytes", lambda: True)
    rows = np.ones((2, products.MAX_COLUMNS), np.float32)
    with Product(Crew(), rows).of(rows) as (numbers, scales):
        assert numbers * scales[:, None] ** 2 == pytest.approx(products.MAX_COLUMNS)
    assert not Product(Crew(), np.ones((1, products.MAX_COLUMNS + 1), np.float32)).in_bytes


def test_8_bit_products_need_vnni_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"avx512_vnni": True}
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: known, raising=False)
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: True)
    assert products.has_bytes()
    known["avx512_vnni"] = False
    assert not products.has_bytes()
    known.clear()
    assert not products.has_bytes()
    monkeypatch.delattr("torch.cpu.get_capabilities")
    assert not products.has_bytes(), "an older PyTorch does not tell"
