"""Scaling of features to rows of unit length."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oddlot.sparse import SlideClassifier, saving
from oddlot.sparse.csr import Csr
from oddlot.sparse.datasets.generating import Shape, generate
from tests.transcripts import raises

pytestmark = pytest.mark.usefixtures("one_thread")

X, Y = generate(200, Shape(80, 40, 20.0, 2.0))
LENGTHS = np.exp2(np.random.default_rng(0).integers(-8, 9, len(X))).astype(np.float32)
"""Powers of 2: they change exponents only."""
LONG = replace(X, data=X.data * np.repeat(LENGTHS, np.diff(X.indptr)))


def fresh(**settings: Any) -> SlideClassifier:
    return SlideClassifier(hidden=8, epochs=2, batch=32, **settings)


@pytest.mark.parametrize("way", ["fit", "partial_fit"])
def test_normalization_makes_results_independent_of_row_lengths(way: str) -> None:
    one, other = (getattr(fresh(), way)(x, Y) for x in (X, LONG))
    assert all(torch.equal(t, other.model.state_dict()[name]) for name, t in one.model.state_dict().items())
    assert one.predict_topk(X).tolist() == other.predict_topk(LONG).tolist()
    assert one.score(X, Y) == other.score(LONG, Y)


def test_normalize_false_keeps_row_lengths() -> None:
    one, other = (fresh(normalize=False).fit(x, Y) for x in (X, LONG))
    assert not torch.equal(one.input.weight, other.input.weight)
    with raises(ValueError, "invalid_value", name="normalize", given=1):
        SlideClassifier(normalize=1)  # type: ignore[arg-type]


def test_unit_rows_have_length_one_and_empty_rows_stay() -> None:
    """The largest and smallest float32 values are scaled correctly, too."""
    limits = np.finfo(np.float32)
    values = np.array([3, -4, 0, limits.max, limits.max, limits.smallest_subnormal], np.float32)
    x = Csr(np.array([0, 2, 2, 3, 5, 6]), np.arange(6, dtype=np.int32), values, (5, 6))
    found = x.unit_rows()
    half = 0.5**0.5
    np.testing.assert_allclose(found.data, [0.6, -0.8, 0, half, half, 1], rtol=1e-6)
    assert found.data.dtype == np.dtype(np.float32)
    assert len(x.between(0, 0).unit_rows()) == 0


@pytest.mark.parametrize("normalize", [True, False])
def test_saved_classifier_keeps_its_normalization(normalize: bool, tmp_path: Path) -> None:
    """Settings for the next fit have no effect on the saved file."""
    made = fresh(normalize=normalize).fit(LONG, Y)
    expected = made.predict_topk(LONG).tolist()
    made.set_params(normalize=not normalize).save(tmp_path)
    again = SlideClassifier.load(tmp_path)
    assert again.normalize == normalize
    assert again.predict_topk(LONG).tolist() == made.predict_topk(LONG).tolist() == expected


def test_file_without_normalize_loads_as_false(tmp_path: Path) -> None:
    made = fresh(normalize=False).fit(LONG, Y)
    made.save(tmp_path)
    message, weights = saving.read(tmp_path)
    del message["settings"]["normalize"]
    saving.write(tmp_path, message, weights)
    again = SlideClassifier.load(tmp_path)
    assert not again.normalize
    assert again.predict_topk(LONG).tolist() == made.predict_topk(LONG).tolist()
