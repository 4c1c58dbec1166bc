"""Errors for invalid settings, matrices and files, raised with a code before any computation."""

from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from oddlot.sparse import (
    LSH,
    SGD,
    Adam,
    Clusters,
    Dense,
    LazyAdam,
    Mixed,
    Refresh,
    RowAdagrad,
    SampledLinear,
    Shared,
    SlideClassifier,
    SparseInputLinear,
    Uniform,
    Unigram,
    errors,
)
from oddlot.sparse.csr import Csr
from oddlot.sparse.topk import Index
from tests.sparse.layers import memory_of
from tests.transcripts import raises

ZERO: dict[Any, str] = {
    Uniform: "count group",
    Shared: "count",
    Unigram: "draws group",
    Clusters: "each probes group",
    LSH: "digits tables found most_of_bucket redraw_every",
    Refresh: "every",
    RowAdagrad: "eps",
    Adam: "eps",
    SampledLinear: "in_features out_features",
    SparseInputLinear: "in_features out_features",
    SlideClassifier: "hidden epochs batch labels patience",
}
OTHERS: dict[Any, Any] = {
    Uniform: {"count": [-5, 2**70]},
    Unigram: {"frequency": [1.0], "counts": [[0.5, 1.0]], "refresh": [None]},
    Clusters: {
        "by_chance": [-500, False],
        "frequency": [-0.5],
        "refresh": [50],
        "counts": [np.array([3, -1])],
    },
    LSH: {"family": ["foo"], "digits": [2.5], "found": [-5], "by_chance": [-500, 2**70], "counts": [[[1, 2]]]}
    | {"refresh": [3], "changed_only": ["yes"], "frequency": [nan]},
    Mixed: {"samplers": [[], Uniform()]},
    Refresh: {"slower": [nan, 800.0, ""]},
    SGD: {"lr": [-1.0, 1e39]},
    RowAdagrad: {"lr": [-1.0], "eps": [inf]},
    Adam: {"lr": [nan], "betas": [0.9, (0.9, 0.99, 0.9)], "decay": ["yes"], "moments": ["fp8"]},
    SampledLinear: {"in_features": [10**30], "std": [nan], "optimizer": [Adam, torch.optim.Adam]},
    SparseInputLinear: {"in_features": [-1], "std": [-1.0], "optimizer": [Adam], "seed": [-1]},
    SlideClassifier: {"hidden": [True], "labels": [2.5], "lr": [-1.0], "validation": [1.0, nan]}
    | {"input_lr": [-1.0], "input_std": [nan], "seed": [-1, 1 << 63], "verbose": ["a"]},
}


def rejected(make: Any, name: str, given: Any) -> None:
    sizes = {"in_features": 3, "out_features": 5} if issubclass(make, nn.Module) else {}
    with raises(ValueError, "invalid_value", name=name, given=given):
        make(**sizes | {name: given})


@pytest.mark.parametrize("make", ZERO, ids=lambda make: make.__name__)
def test_zero_is_rejected_for_positive_settings(make: Any) -> None:
    for name in ZERO[make].split():
        rejected(make, name, 0)


@pytest.mark.parametrize("make", OTHERS, ids=lambda make: make.__name__)
def test_invalid_values_are_rejected(make: Any) -> None:
    for name, values in OTHERS[make].items():
        for given in values:
            rejected(make, name, given)


KNOWS = LSH(by_chance=0, changed_only=True)
HALF: Any = SimpleNamespace(choose=print)
layer: Any = SampledLinear
mixed: Any = Mixed
classifier: Any = SlideClassifier

TOGETHER = [
    (lambda: Clusters(found=0, by_chance=0), "invalid_value", {"name": "found + by_chance", "given": 0}),
    (lambda: Adam(betas=(1.0, 0.9)), "invalid_value", {"name": "beta1", "given": 1.0}),
    (lambda: Adam(betas=(0.99, 0.9), decay=True), "decay_without_end", {"betas": (0.99, 0.9)}),
    (lambda: SparseInputLinear(3, 5, Adam(decay=True)), "decay_of_features", {}),
    (lambda: layer(8, 50, KNOWS, Adam(decay=True)), "changed_only_with_decay", {}),
    (lambda: LSH(digits=64), "code_too_long", {"digits": 64, "bits": 64, "most": 63}),
    (lambda: LSH("dwta", digits=22), "code_too_long", {"digits": 22, "bits": 66, "most": 63}),
    (lambda: layer(3, 5, Clusters), "not_a_sampler", {"given": Clusters}),
    (lambda: layer(3, 5, "uniform"), "not_a_sampler", {"given": "uniform"}),
    (lambda: layer(3, 5, HALF), "not_a_sampler", {"lacks": ["most", "prepare", "forget"]}),
    (lambda: classifier("clusters"), "not_a_sampler", {"given": "clusters"}),
    (lambda: mixed([Uniform(), None]), "not_a_sampler", {"given": None}),
    (lambda: mixed([KNOWS, Uniform()]), "changed_only_not_last", {"place": 0}),
    (lambda: mixed([Clusters(), Mixed([KNOWS]), Uniform()]), "changed_only_not_last", {"place": 1}),
]


@pytest.mark.parametrize(("make", "code", "fields"), TOGETHER, ids=[code for *_, code, _ in TOGETHER])
def test_incompatible_settings_are_rejected(
    make: Callable[[], Any], code: str, fields: dict[str, Any]
) -> None:
    with raises(ValueError, code, **fields):
        make()


def test_compatible_settings_are_accepted() -> None:
    Adam(betas=(0.99, 0.9))
    Mixed([Clusters(by_chance=0), Mixed([KNOWS])])


def a_set(examples: int = 20, columns: int = 20) -> Csr:
    return Csr(
        np.arange(examples + 1),
        np.arange(examples, dtype=np.int32) % columns,
        np.ones(examples, np.float32),
        (examples, columns),
    )


X = Y = a_set()
TWO = {"indptr": np.array([0, 1, 3]), "data": np.ones(3, np.float32), "shape": (2, 10)}


def changed(**parts: Any) -> Any:
    """Return the dataset's matrix with other arrays."""
    return SimpleNamespace(**vars(X) | parts)


def values(at: int, value: float) -> Any:
    return changed(data=np.where(np.arange(20) == at, value, 1.0))


DATA = [
    (np.zeros((20, 20, 1)), Y, "wrong_shape", {"name": "X", "shape": (20, 20, 1)}),
    ("features", Y, "not_a_matrix", {"name": "X", "given": "str"}),
    (changed(shape=(5,)), Y, "not_a_matrix", {"name": "X", "given": "SimpleNamespace"}),
    (changed(shape=None), Y, "not_a_matrix", {"name": "X", "given": "SimpleNamespace"}),
    (changed(format="csc"), Y, "other_matrix_format", {"name": "X", "format": "csc"}),
    (changed(data=X.data + 1j), Y, "wrong_dtype", {"name": "X", "dtype": "complex64"}),
    (changed(indptr=np.zeros((2, 2), int)), Y, "not_1d_integers", {"name": "X"}),
    (changed(indices=np.array(["a"] * 20)), Y, "not_1d_integers", {"name": "X"}),
    (changed(indices=np.array([1.7] * 20)), Y, "not_1d_integers", {"name": "X"}),
    (changed(data=np.ones((20, 1))), Y, "not_1d_integers", {"name": "X"}),
    (changed(data=X.data[:3]), Y, "invalid_row_pointers", {"name": "X"}),
    (changed(indptr=X.indptr[::-1]), Y, "invalid_row_pointers", {"name": "X"}),
    # differences of unsigned integers are never negative
    (
        changed(**TWO | {"indptr": np.array([0, 3, 2], np.uint32)}, indices=np.array([1, 2, 3])),
        Y,
        "invalid_row_pointers",
        {"name": "X"},
    ),
    # 2**32 + 5 must not wrap around to 5
    (
        changed(**TWO, indices=np.array([1, 2, 2**32 + 5])),
        Y,
        "out_of_range",
        {"name": "X", "given": 2**32 + 5, "row": 1, "size": 10},
    ),
    (changed(shape=(20, 5)), Y, "out_of_range", {"name": "X", "given": 5, "row": 5, "size": 5}),
    (values(0, 1e300), Y, "not_finite", {"name": "X", "row": 0, "given": 1e300}),
    (values(7, nan), Y, "not_finite", {"name": "X", "row": 7}),
    (csr_matrix((20, 0)), Y, "no_columns", {"name": "X"}),
    (X, csr_matrix((20, 20)).tolil(), "other_matrix_format", {"name": "y", "format": "lil"}),
    (X, values(7, -1.0), "negative_label", {"name": "y", "row": 7, "given": -1.0}),
    (X, torch.eye(20).to_sparse(), "not_an_array", {"name": "y"}),
    (X, torch.zeros(20, requires_grad=True), "not_an_array", {"name": "y"}),
    (X, [[0], [1, 2]], "ragged_rows", {"name": "y"}),
    (X, np.zeros((20, 1), int), "column_vector", {"name": "y", "shape": (20, 1)}),
    (X, np.full((20, 4), 0.5), "not_labels", {"name": "y", "shape": (20, 4), "dtype": "float64"}),
    (X, np.arange(20.0), "not_labels", {"name": "y", "shape": (20,), "dtype": "float64"}),
    (X, "labels", "not_labels", {"name": "y", "shape": (), "dtype": "<U6"}),
    (X, np.full(20, -1), "out_of_range", {"name": "y", "given": -1}),
    (X, np.full(20, 2**31), "out_of_range", {"name": "y", "given": 2**31, "size": 2**31 - 1}),
    (X, np.arange(5), "different_lengths", {"name": "y", "given": 5, "expected": 20}),
    (X, csr_matrix((20, 20)), "no_labels", {"examples": 20}),
    (csr_matrix((0, 20)), csr_matrix((0, 20)), "no_labels", {"examples": 0}),
]


@pytest.mark.parametrize(("x", "y", "code", "fields"), DATA, ids=[code for *_, code, _ in DATA])
def test_fit_rejects_invalid_features_and_labels(x: Any, y: Any, code: str, fields: dict[str, Any]) -> None:
    with raises(ValueError, code, **fields):
        SlideClassifier(hidden=4).fit(x, y)


def test_values_after_the_last_row_are_ignored() -> None:
    more = Csr(X.indptr, np.append(X.indices, 99).astype(np.int32), np.ones(21, np.float32), X.shape)
    trained = SlideClassifier(hidden=4, epochs=1).fit(X, more)
    assert trained.score(X, more) == trained.score(X, Y)


def test_unfitted_classifier_raises_not_fitted(tmp_path: Path) -> None:
    fresh = SlideClassifier()
    asks: list[Callable[[], Any]] = [
        lambda: fresh.score(X, Y),
        lambda: fresh.n_labels_,
        lambda: fresh.save(tmp_path / "x"),
        lambda: fresh.predict(X),
    ]
    for ask in asks:
        with raises(ValueError, "not_fitted"):
            ask()
    assert not (tmp_path / "x").exists()
    assert not hasattr(fresh, "classes_")
    assert getattr(fresh, "n_labels_", None) is None


def test_predict_and_partial_fit_reject_invalid_arguments() -> None:
    trained: Any = SlideClassifier(hidden=4, epochs=1).fit(X, Y)
    for recall in (-1, 0, 1.5, nan, "a"):
        with raises(ValueError, "invalid_value", name="recall", given=recall):
            trained.predict_topk(X, 2, exact=False, recall=recall)
    with raises(ValueError, "recall_of_exact", recall=0.8):
        trained.score(X, Y, recall=0.8)
    for k in (0, 21, 1.5, -1):
        with raises(ValueError, "invalid_value", name="k", given=k):
            trained.predict_topk(X, k)
    with raises(ValueError, "invalid_value", name="exact", given="no"):
        trained.predict(X, exact="no")
    with raises(ValueError, "wrong_column_count", name="X", given=7, expected=20):
        trained.predict(changed(shape=(20, 7), indices=X.indices % 7))
    with raises(ValueError, "no_examples"):
        trained.score(X.rows([]), Y.rows([]))
    with pytest.raises(TypeError, match="'k'"):
        trained.score(X, Y, k=3)
    with raises(ValueError, "out_of_range", name="y", given=20, size=20):
        trained.partial_fit(X, np.arange(1, 21))
    for labels in (trained.partial_fit, SlideClassifier(labels=20).fit):
        with raises(ValueError, "wrong_column_count", name="y", given=7, expected=20):
            labels(X, Csr(Y.indptr, Y.indices % 7, Y.data, (20, 7)))


@pytest.mark.parametrize(
    ("name", "value", "code", "fields"),
    [
        ("weight", torch.zeros(5, 4).double(), "wrong_parameter", {"dtype": "torch.float64"}),
        ("weight", torch.zeros(3, 4), "wrong_parameter", {"shape": (3, 4), "expected": (5, 4)}),
        ("weight", torch.zeros(2, 4), "wrong_parameter", {"shape": (2, 4), "expected": (5, 4)}),
        ("bias", torch.zeros(2), "wrong_parameter", {"shape": (2,)}),
        ("weight", torch.zeros(4, 5).T, "not_contiguous", {}),
    ],
    ids=["dtype", "fewer rows", "two rows", "bias", "view"],
)
def test_replaced_parameters_are_rejected(
    name: str, value: Tensor, code: str, fields: dict[str, Any]
) -> None:
    """Kernels would access memory out of bounds with replaced parameters."""
    output, given = SampledLinear(4, 5), SparseInputLinear(5, 4)
    for layer, inputs in ((output, (torch.zeros(1, 4), [0])), (given, ([0, 1], [0], [1.0]))):
        setattr(layer, name, nn.Parameter(value))
        with raises(ValueError, code, name=name, **fields):
            layer(*inputs)


STARTS: dict[str, list[Any]] = {
    "invalid_row_pointers": [[0, 3_000_000], [0, 3, 2], np.array([0, 100, 2], np.uint64), [1, 2], [-1, 2]],
    "not_1d_integers": [[], [[0, 2]], [0.0, 2.0]],
    "not_an_array": [torch.ones(2).requires_grad_()],
}


@pytest.mark.parametrize("of", ["features", "labels"])
def test_invalid_row_pointers_are_rejected(of: str) -> None:
    """Row pointers that do not fit two values are rejected for features and labels."""
    for code, given in STARTS.items():
        for starts in given:
            with raises(ValueError, code, name=f"the starts of {of}"):
                if of == "features":
                    SparseInputLinear(10, 4)(starts, np.array([1, 2]), [0.5, 0.5])
                else:
                    SampledLinear(3, 5)(torch.zeros(1, 3), (starts, np.array([1, 2])))


FEATURES = [
    ([0, 2], [1, 2], [0.5], "different_lengths", {"name": "values", "given": 1, "expected": 2}),
    ([0, 2], [3.7, 1.0], [1.0, 1.0], "not_1d_integers", {"name": "features", "dtype": "float64"}),
    ([0, 2], [[1, 2]], [1.0, 1.0], "not_1d_integers", {"name": "features", "shape": (1, 2)}),
    ([0, 2], [1, 10], [1.0, 1.0], "out_of_range", {"name": "features", "given": 10, "size": 10}),
    ([0, 2], [1, -1], [1.0, 1.0], "out_of_range", {"name": "features", "given": -1, "size": 10}),
    ([0, 1], [0], np.array([1j]), "wrong_dtype", {"name": "values", "dtype": "complex128"}),
    ([0, 1], [0], np.array(["1"]), "wrong_dtype", {"name": "values", "dtype": "<U1"}),
    ([0, 1], [0], np.array([None]), "wrong_dtype", {"name": "values", "dtype": "object"}),
    ([0, 1], [0], torch.ones(1, dtype=torch.bfloat16), "not_an_array", {"name": "values"}),
    ([0, 1], [0], torch.ones(1, requires_grad=True), "not_an_array", {"name": "values"}),
    ([0, 1, 2], [3, 4], [1.0, 1e39], "not_finite", {"name": "values", "row": 1}),
    ([0, 1, 1, 3], [3, 4, 5], [1.0, 2.0, nan], "not_finite", {"name": "values", "row": 2}),
]


@pytest.mark.parametrize(
    ("starts", "features", "values", "code", "fields"), FEATURES, ids=[code for *_, code, _ in FEATURES]
)
def test_input_layer_rejects_invalid_features(
    starts: Any, features: Any, values: Any, code: str, fields: dict[str, Any]
) -> None:
    with raises(ValueError, code, **fields):
        SparseInputLinear(10, 4)(starts, np.array(features), values)


ONE, BOTH = torch.zeros(1, 3), torch.zeros(2, 3)


HIDDEN = [
    (np.zeros((1, 3)), [0], "not_a_dense_tensor", {"given": "ndarray"}),
    (ONE.to_sparse(), [0], "not_a_dense_tensor", {"given": "Tensor, torch.sparse_coo"}),
    (torch.zeros(2, 4), [0, 1], "wrong_shape", {"name": "hidden", "shape": (2, 4), "columns": 3}),
    (torch.zeros(3), [0], "wrong_shape", {"name": "hidden", "shape": (3,)}),
    (ONE.long(), [0], "wrong_dtype", {"name": "hidden", "dtype": "torch.int64"}),
    (BOTH, ["a"], "not_an_array", {"name": "labels"}),
    (ONE, torch.tensor(1), "wrong_shape", {"name": "labels", "shape": ()}),
    (BOTH, [0.5, 1.0], "wrong_dtype", {"name": "labels", "dtype": "float32"}),
    (BOTH, [3], "different_lengths", {"name": "labels", "given": 1, "expected": 2}),
    (BOTH, [3, 5], "out_of_range", {"name": "labels", "given": 5, "size": 5}),
    (BOTH, [3, -2], "out_of_range", {"name": "labels", "given": -2, "size": 5}),
    (BOTH, (np.array([0, 1]),), "not_1d_integers", {"name": "labels"}),
    (ONE, ([0, 1], [[1]]), "not_1d_integers", {"name": "labels"}),
    # zeros and ones would be read as the labels 0 and 1
    (BOTH, [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]], "zeros_and_ones", {"shape": (2, 5)}),
    (BOTH, [[1, 0, 0], [0, 1, 0]], "zeros_and_ones", {"shape": (2, 3)}),
    (BOTH, [[2, 0, 0, 1], [0, 1, 0, 0]], "zeros_and_ones", {"shape": (2, 4)}),
]


@pytest.mark.parametrize(("hidden", "labels", "code", "fields"), HIDDEN, ids=[code for *_, code, _ in HIDDEN])
def test_output_layer_rejects_invalid_hidden_vectors_and_labels(
    hidden: Any, labels: Any, code: str, fields: dict[str, Any]
) -> None:
    with raises(ValueError, code, **fields):
        SampledLinear(3, 5)(hidden, labels)


def test_nested_tensors_are_rejected() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(3)], layout=torch.jagged)
    with raises(ValueError, "not_a_dense_tensor", name="hidden", given="NestedTensor, torch.jagged"):
        SampledLinear(3, 5)(nested, [0])


def test_integer_labels_similar_to_one_hot_rows_are_accepted() -> None:
    for table in (
        [[0, 1, -1, -1, -1], [1, -1, -1, -1, -1]],
        [[0, 1, 2], [1, 1, 0]],
        [[3, 3, 4], [4, 2, 2]],
        [[0, 1], [1, 0]],
        [[1, 1], [0, 0]],
    ):
        assert torch.isfinite(SampledLinear(3, 5)(BOTH, torch.tensor(table)))


def test_second_backward_raises_gradient_taken() -> None:
    for layer, inputs, of in (
        (SparseInputLinear(10, 4), ([0, 2], [3, 4], [1.0, 2.0]), "sum"),
        (SampledLinear(4, 50, Uniform(5)), (torch.ones(1, 4), [3]), "loss"),
    ):
        out = layer(*inputs).sum()
        out.backward(retain_graph=True)
        before = layer.weight.detach().clone()
        with raises(RuntimeError, "gradient_taken", of=of):
            out.backward()
        assert torch.equal(layer.weight, before)


@pytest.mark.parametrize("large", [1e16, 1e30])
def test_too_large_gradient_of_a_finite_loss_is_skipped(large: float) -> None:
    """The square of the gradient, in the second moment, could be infinite."""
    for optimizer in (Adam(), Adam(moments="bf16"), RowAdagrad()):
        layer = SampledLinear(8, 50, Uniform(10), optimizer)
        before = layer.weight.detach().clone()
        loss = layer((torch.randn(16, 8) * large).requires_grad_(), torch.arange(16))
        assert torch.isfinite(loss)
        loss.backward()
        assert torch.equal(layer.weight, before)
        features = SparseInputLinear(5, 4, optimizer)
        before = features.weight.detach().clone()
        (features([0, 1], [2], [large]) * 1e3).sum().backward()
        assert torch.equal(features.weight, before)
        (features([0, 1], [2], [1.0]) * 1e3).sum().backward()
        assert torch.isfinite(features.weight).all()
        assert not torch.equal(features.weight, before)


def test_samplers_and_optimizers_are_validated_when_assigned() -> None:
    layer: Any = SampledLinear(8, 50, Uniform(10), SGD())
    with raises(ValueError, "not_a_sampler", given="uniform"):
        layer.sampler = "uniform"
    layer.sampler = KNOWS
    with raises(ValueError, "changed_only_with_decay"):
        layer.optimizer = Adam(decay=True)
    layer.sampler = None
    assert isinstance(layer.sampler, Clusters)


def test_learning_rate_set_to_nan_raises_before_any_step() -> None:
    """No row is changed, not even rows with delayed updates."""
    layer: Any = SampledLinear(8, 50, Uniform(10), Adam(decay=True))
    for label in (1, 2, 3):
        layer(torch.ones(1, 8, requires_grad=True), [label]).backward()
    plain: Any = SampledLinear(8, 50, Uniform(10), Adam())
    loss = plain(torch.ones(1, 8, requires_grad=True), [1])
    features: Any = SparseInputLinear(10, 6, Adam())
    total = features([0, 2], [1, 2], [1.0, 2.0]).sum()
    for one in (layer, plain, features):
        one.optimizer.lr = nan
    for ask in (layer.state_dict, lambda: layer(torch.ones(1, 8)), loss.backward, total.backward):
        with raises(ValueError, "invalid_value", name="lr"):
            ask()
    assert torch.isfinite(layer.weight).all()
    assert torch.isfinite(plain.weight).all()
    assert features.step == plain.step == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_logits_have_the_dtype_of_hidden_vectors(dtype: torch.dtype) -> None:
    layer, hidden = SampledLinear(8, 50), torch.randn(3, 8)
    found = layer(hidden.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), layer(hidden), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("what", "gigabytes", "make"),
    [
        ("a layer of 2,147,483,647 outputs", 3298, lambda: SampledLinear(128, 2**31 - 1)),
        ("a layer of 2,000,000,000 features", 3072, lambda: SparseInputLinear(2 * 10**9, 128)),
        ("a network of 20 features and 20 labels", 320, lambda: SlideClassifier(hidden=10**9).fit(X, Y)),
        ("1,000,000,000 tables of 500 rows in 500 buckets", 6064, lambda: hashed(LSH(tables=10**9))),
        (
            "1,000,000 tables of 500 rows in 1,048,576 buckets",
            4199,
            lambda: hashed(LSH("simhash", 20, 10**6)),
        ),
        ("a batch of 100,000 with 100,001 outputs each", 400, lambda: hashed(Dense(), 10**5, 10**5)),
    ],
    ids=["outputs", "features", "network", "tables", "buckets", "batch"],
)
def test_too_large_sizes_raise_not_enough_memory(what: str, gigabytes: int, make: Callable[[], Any]) -> None:
    with memory_of(1e9), raises(MemoryError, "not_enough_memory", what=what, has=10**9) as caught:
        make()
    assert caught.fields["needs"] // 10**9 == gigabytes


def hashed(sampler: Any, rows: int = 500, examples: int = 1) -> Tensor:
    loss: Tensor = SampledLinear(16, rows, sampler)(torch.zeros(examples, 16), [0] * examples)
    return loss


def test_memory_limit_of_a_container_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory limit of a container counts, unless it is `max`."""
    monkeypatch.setattr(errors, "LIMITS", (str(tmp_path / "memory.max"), "/no/such/file"))
    (tmp_path / "memory.max").write_text("max\n")
    SampledLinear(64, 10_000)
    (tmp_path / "memory.max").write_text("1000000\n")
    with raises(MemoryError, "not_enough_memory", has=1_000_000):
        SampledLinear(64, 10_000)


def test_memory_is_checked_for_layers_and_index_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check adds two layers of a network, and adds clusters for prediction to the memory in use."""
    one_each = 20 * 128 * 8  # bytes of a layer: weights and two 16-bit moments
    what = "a network of 20 features and 20 labels"
    with memory_of(1.5 * one_each), raises(MemoryError, "not_enough_memory", what=what, needs=2 * one_each):
        SlideClassifier(epochs=1).fit(X, Y)
    monkeypatch.setattr("oddlot.sparse.topk.bytes_held", lambda: 10**9)
    rows = np.zeros((3000, 16), np.float32)
    what = "an index of 3,000 rows, with the memory in use,"
    with memory_of(1e9), raises(MemoryError, "not_enough_memory", what=what, needs=10**9 + 4 * rows.size):
        Index(rows, rows[:, 0].copy())


def test_batch_with_too_many_slots_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oddlot.sparse.active_set.check_memory", lambda *_: None)
    layer, examples = SampledLinear(4, 4000, Uniform(3000), None), 1 << 20
    with raises(MemoryError, "too_many_slots", examples=examples, each=3001):
        layer(torch.zeros(1, 4).expand(examples, 4), torch.zeros(examples, dtype=torch.int64))


def test_empty_batch_with_lsh_has_zero_loss() -> None:
    layer = SampledLinear(3, 50, LSH(found=5))
    assert layer(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).item() == 0


def test_lazy_adam_rejects_unsupported_parameters() -> None:
    convolution: Any = nn.Conv2d(3, 4, 3)
    with raises(ValueError, "not_contiguous", shape=(4, 3, 3, 3)):
        LazyAdam(convolution.to(memory_format=torch.channels_last).parameters())
    plain = torch.zeros(2, requires_grad=True)
    optimizer = LazyAdam([plain])
    with raises(ValueError, "wrong_parameter", dtype="torch.float64", device="cpu"):
        optimizer.add_param_group({"params": [torch.zeros(2, dtype=torch.float64, requires_grad=True)]})
    with raises(ValueError, "invalid_value", name="lr", given=-1):
        LazyAdam([plain], lr=-1)
    table = torch.zeros(2, 3, requires_grad=True)
    table.grad = torch.ones(2, 3).to_sparse()
    with raises(ValueError, "wrong_gradient", sparse_dim=2):
        LazyAdam([table]).step()
