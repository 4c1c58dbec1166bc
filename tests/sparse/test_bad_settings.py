"""Settings, matrices and files that make no sense are refused in a sentence, before anything is computed."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from oddlot.sparse import (
    LSH,
    SGD,
    Adam,
    Clusters,
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
    memory,
)
from oddlot.sparse.csr import Csr


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (Uniform, {"count": -5}),
        (Uniform, {"count": 0}),
        (Uniform, {"group": 0}),
        (Shared, {"count": 0}),
        (Unigram, {"draws": 0}),
        (Unigram, {"frequency": 1.0}),
        (Clusters, {"frequency": -0.5}),
        (Clusters, {"by_chance": -500}),
        (Clusters, {"probes": 0}),
        (Clusters, {"each": 0}),
        (Clusters, {"group": -1}),
        (Clusters, {"found": 0, "by_chance": 0}),
        (LSH, {"found": -5}),
        (LSH, {"by_chance": -500}),
        (LSH, {"tables": 0}),
        (LSH, {"digits": 0}),
        (LSH, {"digits": 2.5}),
        (LSH, {"redraw_every": 0}),
        (LSH, {"family": "foo"}),
        (Refresh, {"every": 0}),
        (Refresh, {"slower": float("nan")}),
        (Refresh, {"slower": 800.0}),
        (LSH, {"found": 0}),
        (Refresh, {"slower": ""}),
        (Clusters, {"by_chance": False}),
        (Unigram, {"counts": [0.5, 1.0]}),
        (Clusters, {"counts": np.array([3, -1])}),
        (LSH, {"counts": [[1, 2]]}),
        (Adam, {"eps": 0.0}),
        (RowAdagrad, {"eps": 0.0}),
        (SGD, {"lr": 1e39}),
        (SampledLinear, {"in_features": 3, "out_features": 5, "sampler": SimpleNamespace(choose=print)}),
        (SampledLinear, {"in_features": 3, "out_features": 5, "std": float("nan")}),
        (SampledLinear, {"in_features": 3, "out_features": 5, "sampler": Clusters}),
        (SparseInputLinear, {"in_features": 3, "out_features": 5, "std": -1.0}),
        (SGD, {"lr": -1.0}),
        (RowAdagrad, {"eps": float("inf")}),
        (Adam, {"lr": float("nan")}),
        (Adam, {"betas": (1.0, 0.9)}),
        (SlideClassifier, {"batch": 0}),
        (SlideClassifier, {"epochs": 0}),
        (SlideClassifier, {"hidden": True}),
        (SlideClassifier, {"validation": 1.0}),
        (SlideClassifier, {"validation": float("nan")}),
        (SlideClassifier, {"lr": -1.0}),
        (SlideClassifier, {"seed": -1}),
        (SlideClassifier, {"seed": 1 << 63}),
        (SlideClassifier, {"labels": 2.5}),
        (SlideClassifier, {"verbose": "a"}),
        (Adam, {"decay": "yes"}),
        (Adam, {"betas": 0.9}),
        (Adam, {"betas": (0.9, 0.99, 0.9)}),
        (Clusters, {"refresh": 50}),
        (Unigram, {"refresh": None}),
        (LSH, {"refresh": 3}),
        (LSH, {"changed_only": "yes"}),
        (LSH, {"by_chance": 2**70}),
        (Uniform, {"count": 2**70}),
        (SlideClassifier, {"sampler": "clusters"}),
        (Mixed, {"samplers": []}),
        (Mixed, {"samplers": Uniform()}),
        (Mixed, {"samplers": [Uniform(), None]}),
        (Mixed, {"samplers": [LSH(by_chance=0, changed_only=True), Uniform()]}),
        (SampledLinear, {"in_features": 3, "out_features": 0}),
        (SampledLinear, {"in_features": 3, "out_features": 5, "sampler": "uniform"}),
        (SparseInputLinear, {"in_features": -1, "out_features": 5}),
        (SparseInputLinear, {"in_features": 3, "out_features": 5, "optimizer": Adam}),
        (SparseInputLinear, {"in_features": 3, "out_features": 5, "optimizer": Adam(decay=True)}),
        (SampledLinear, {"in_features": 3, "out_features": 5, "optimizer": Adam}),
        (SampledLinear, {"in_features": 3, "out_features": 5, "optimizer": torch.optim.Adam}),
    ],
)
def test_settings(make: Callable[..., Any], settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|is no |is neither|from 1 to|decay is for"):
        make(**settings)


def a_set(examples: int = 20, columns: int = 20) -> Csr:
    indptr = np.arange(examples + 1)
    return Csr(
        indptr,
        np.arange(examples, dtype=np.int32) % columns,
        np.ones(examples, np.float32),
        (examples, columns),
    )


def test_columns_are_not_taken_for_rows() -> None:
    x = a_set()
    columns = SimpleNamespace(format="csc", indptr=x.indptr, indices=x.indices, data=x.data, shape=x.shape)
    with pytest.raises(ValueError, match=r"X is a matrix in the form csc: its \.tocsr\(\)"):
        SlideClassifier().fit(columns, a_set())


def test_arrays_that_do_not_fit_each_other() -> None:
    x = a_set()
    with pytest.raises(ValueError, match="row pointers do not rise from 0 to its values"):
        SlideClassifier().fit(Csr(x.indptr, x.indices, x.data[:3], x.shape), a_set())
    more = Csr(x.indptr, np.append(x.indices, 99).astype(np.int32), np.ones(21, np.float32), x.shape)
    trained = SlideClassifier(hidden=4, epochs=1).fit(x, more)
    assert trained.score(x, more) == trained.score(x, a_set()), "what is behind the last row does not count"


def test_what_is_asked_of_one_that_knows_nothing(tmp_path: Path) -> None:
    asks: list[Callable[[SlideClassifier], Any]] = [
        lambda one: one.score(a_set(), a_set()),
        lambda one: one.n_labels_,
        lambda one: one.save(tmp_path / "x"),
        lambda one: one.predict(a_set()),
    ]
    for ask in asks:
        with pytest.raises(ValueError, match="it has not been trained: call fit first"):
            ask(SlideClassifier())
    assert not (tmp_path / "x").exists()


def test_predictions_and_more_labels_than_there_were() -> None:
    trained = SlideClassifier(hidden=4, epochs=1).fit(a_set(), a_set())
    for recall in (-1, 0, 1.5, float("nan"), "a"):
        with pytest.raises(ValueError, match=r"recall = .* must be a number above 0, at most 1"):
            trained.predict_topk(a_set(), 2, exact=False, recall=recall)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ValueError, match=r"recall = 0\.8 is for exact=False"):
        trained.score(a_set(), a_set(), recall=0.8)
    for k in (0, 21, 1.5, -1):
        with pytest.raises(ValueError, match=rf"k = {k} must be a whole number, from 1 to 20"):
            trained.predict_topk(a_set(), k)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ValueError, match="exact = 'no' must be True or False"):
        trained.predict(a_set(), exact="no")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ValueError, match="y has the label 20, there are 20: set labels="):
        trained.partial_fit(a_set(), np.arange(1, 21))
    with pytest.raises(ValueError, match="y has 20 labels, there are 7"):
        SlideClassifier(labels=7).fit(a_set(), a_set())


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda layer: setattr(layer, "weight", nn.Parameter(torch.zeros(3, 4))), r"weight is \(3, 4\)"),
        (lambda layer: setattr(layer, "bias", nn.Parameter(torch.zeros(2))), r"bias is \(2,\)"),
        (lambda layer: setattr(layer.weight, "data", layer.weight.data[:2]), r"weight is \(2, \d\)"),
        (lambda layer: setattr(layer.weight, "data", layer.weight.data.T.contiguous().T), "weight is a view"),
    ],
)
def test_parameters_of_another_shape(spoil: Callable[[Any], Any], told: str) -> None:
    """Kernels would read and write beside them."""
    output, given = SampledLinear(4, 5), SparseInputLinear(5, 4)
    for layer, inputs in ((output, (torch.zeros(1, 4), [0])), (given, ([0, 1], [0], [1.0]))):
        spoil(layer)
        with pytest.raises(ValueError, match=told):
            layer(*inputs)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (np.array([1j]), "real numbers are expected"),
        (np.array(["1"]), "real numbers are expected"),
        (np.array([None]), "real numbers are expected"),
        (torch.ones(1, dtype=torch.bfloat16), "values are no array of numbers: .*BFloat16"),
        (torch.ones(1, requires_grad=True), "values are no array of numbers: .*requires grad"),
    ],
)
def test_values_that_are_no_real_numbers(values: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SparseInputLinear(5, 4)([0, 1], [0], values)


@pytest.mark.parametrize("large", [1e16, 1e30])
def test_a_finite_loss_whose_gradient_is_too_large_changes_nothing(large: float) -> None:
    """Its square, in a second moment, could be infinite."""
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


def test_a_rate_that_becomes_none_and_samplers_that_are_set_later() -> None:
    layer = SampledLinear(8, 50, Uniform(10), Adam())
    with pytest.raises(ValueError, match="'uniform' is no sampler"):
        layer.sampler = "uniform"  # type: ignore[assignment]  # on purpose
    layer.sampler = None
    assert isinstance(layer.sampler, Clusters)
    assert layer.optimizer is not None
    layer.optimizer.lr = float("nan")
    with pytest.raises(ValueError, match="lr = nan must be a number"):
        layer(torch.ones(1, 8, requires_grad=True), [1]).backward()
    assert torch.isfinite(layer.weight).all()


def test_a_rate_that_becomes_none_spoils_no_row_that_waits() -> None:
    layer = SampledLinear(8, 50, Uniform(10), Adam(decay=True))
    for label in (1, 2, 3):
        layer(torch.ones(1, 8, requires_grad=True), [label]).backward()
    assert layer.optimizer is not None
    layer.optimizer.lr = float("nan")
    for ask in (layer.state_dict, lambda: layer(torch.ones(1, 8))):
        with pytest.raises(ValueError, match="lr = nan must be a number"):
            ask()
    assert torch.isfinite(layer.weight).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_all_logits_in_the_dtype_of_hidden_vectors(dtype: torch.dtype) -> None:
    layer, hidden = SampledLinear(8, 50), torch.randn(3, 8)
    found = layer(hidden.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), layer(hidden), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("y", [torch.eye(20).to_sparse(), torch.zeros(20, requires_grad=True)])
def test_tensors_that_are_no_array_of_labels(y: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="y is no array of numbers"):
        SlideClassifier().fit(a_set(), y)


@pytest.mark.parametrize(
    "parts",
    [
        {"indptr": np.zeros((2, 2), int)},
        {"indices": np.array(["a"] * 20)},
        {"indices": np.array([1.7] * 20)},
        {"shape": (5,)},
        {"shape": None},
        {"data": np.ones((20, 1))},
    ],
)
def test_matrices_that_are_none(parts: dict[str, Any]) -> None:
    x = a_set()
    whole: dict[str, Any] = {"indptr": x.indptr, "indices": x.indices, "data": x.data, "shape": x.shape}
    with pytest.raises(ValueError, match="no CSR matrix"):
        SlideClassifier().fit(SimpleNamespace(**(whole | parts)), x)


def test_rows_of_another_dtype() -> None:
    with pytest.raises(
        ValueError, match=r"weight is \(5, 3\), torch\.float64 on cpu: \(5, 3\), torch\.float32 on the CPU"
    ):
        SampledLinear(3, 5).double()(torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64))


def test_hidden_vectors_that_are_no_tensor() -> None:
    with pytest.raises(ValueError, match=r"hidden is ndarray: a dense tensor, \(batch, 3\), is expected"):
        SampledLinear(3, 5)(np.zeros((1, 3)), [0])
    with pytest.raises(ValueError, match=r"hidden is Tensor, torch\.sparse_coo: a dense tensor"):
        SampledLinear(3, 5)(torch.zeros(1, 3).to_sparse(), [0])
    with pytest.raises(ValueError, match="a dense tensor"):
        SampledLinear(3, 5)(torch.nested.nested_tensor([torch.zeros(3)], layout=torch.jagged), [0])
    with pytest.raises(ValueError, match="labels are whole numbers, as a tensor or as"):
        SampledLinear(3, 5)(torch.zeros(1, 3), ["a"])


def test_sizes_that_no_machine_has() -> None:
    with pytest.raises(
        ValueError, match=r"in_features = 10+ must be a whole number, from 1 to 2,147,483,647"
    ):
        SampledLinear(10**30, 5)
    with pytest.raises(MemoryError, match=r"a layer of 2,147,483,647 outputs needs"):
        SampledLinear(128, 2**31 - 1)
    with pytest.raises(MemoryError, match=r"a network of 20 features and 20 labels needs"):
        SlideClassifier(hidden=10**9).fit(a_set(), a_set())
    for lsh, told in (
        (LSH(tables=10**9), "1,000,000,000 tables of 500 rows in 500 buckets needs"),
        (LSH(digits=20, tables=10**6), "1,000,000 tables of 500 rows in 1,048,576 buckets needs 4,"),
    ):
        with pytest.raises(MemoryError, match=told):
            SampledLinear(16, 500, lsh)(torch.zeros(1, 16), [0])


def test_a_sampler_that_is_half_a_one() -> None:
    with pytest.raises(ValueError, match=r"is no sampler \(it has no most, prepare, forget\)"):
        SampledLinear(3, 5, SimpleNamespace(choose=print))


@pytest.mark.parametrize(
    "labels",
    [torch.tensor(1), (np.array([0, 0.5, 1.0]), np.array([1])), (np.array([[0], [1]]), np.array([1]))],
)
def test_labels_of_no_form(labels: Any) -> None:
    with pytest.raises(ValueError, match="labels"):
        SampledLinear(3, 5)(torch.zeros(1, 3), labels)


def test_labels_as_zeros_and_ones() -> None:
    """They would be taken for the labels 0 and 1; a table may have fewer columns than there are outputs."""
    layer, hidden = SampledLinear(3, 5), torch.zeros(2, 3)
    for table in ([[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]], [[1, 0, 0], [0, 1, 0]], [[2, 0, 0, 1], [0, 1, 0, 0]]):
        with pytest.raises(
            ValueError, match="label 0 stands twice in every row, as if there were zeros and ones"
        ):
            layer(hidden, torch.tensor(table))
    for table in (
        [[0, 1, -1, -1, -1], [1, -1, -1, -1, -1]],
        [[0, 1, 2], [1, 1, 0]],
        [[3, 3, 4], [4, 2, 2]],
        [[0, 1], [1, 0]],
        [[1, 1], [0, 0]],
    ):
        assert torch.isfinite(layer(hidden, torch.tensor(table)))


def test_an_empty_batch_asks_hashes_for_nothing() -> None:
    layer = SampledLinear(3, 50, LSH(found=5))
    assert layer(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).item() == 0


def test_parameters_that_lazy_adam_cannot_take() -> None:
    convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # PyTorch has it
    with pytest.raises(ValueError, match="channels_last: make it contiguous"):
        LazyAdam(convolution.parameters())
    optimizer = LazyAdam([torch.zeros(2, requires_grad=True)])
    with pytest.raises(ValueError, match="float32 on the CPU"):
        optimizer.add_param_group({"params": [torch.zeros(2, dtype=torch.float64, requires_grad=True)]})
    with pytest.raises(ValueError, match="lr = -1 must be"):
        LazyAdam([torch.zeros(2, requires_grad=True)], lr=-1)


def test_a_score_is_of_one_label() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'k'"):
        SlideClassifier().score(None, None, k=3)  # type: ignore[call-arg]


NO_STARTS = [
    [0, 3_000_000],
    [0, 3, 2],
    [1, 2],
    [-1, 2],
    [],
    [[0, 2]],
    [0.0, 2.0],
    torch.ones(2).requires_grad_(),
]


@pytest.mark.parametrize("starts", NO_STARTS)
def test_starts_that_are_none(starts: Any) -> None:
    layer = SparseInputLinear(10, 4)
    with pytest.raises(ValueError, match="the starts of features"):
        layer(starts, np.array([1, 2]), np.array([0.5, 0.5]))
    with pytest.raises(ValueError, match="2 features have 1 values"):
        layer(np.array([0, 2]), np.array([1, 2]), np.array([0.5]))


def test_features_and_values_that_are_none() -> None:
    layer = SparseInputLinear(10, 4)
    for features in ([3.7, 1.0], [[1, 2]]):
        with pytest.raises(ValueError, match="a 1-D array of whole numbers"):
            layer([0, 2], features, [1.0, 1.0])
    with pytest.raises(ValueError, match="a value of example 1 of the batch is not finite"):
        layer([0, 1, 2], [3, 4], [1.0, 1e39])
    out = layer([0, 2], [3, 4], [1.0, 2.0]).sum()
    out.backward(retain_graph=True)
    before = layer.weight.detach().clone()
    with pytest.raises(RuntimeError, match="the gradient of this sum has been taken"):
        out.backward()
    assert torch.equal(layer.weight, before)


def test_memory_is_that_of_the_container_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose limit may be `max`."""
    for text, fits in (("max\n", True), ("1000000\n", False)):
        (tmp_path / "memory.max").write_text(text)
        monkeypatch.setattr(memory, "LIMITS", (str(tmp_path / "memory.max"), "/no/such/file"))
        with nullcontext() if fits else pytest.raises(MemoryError, match=r"this machine has 0\.0 GB"):
            SampledLinear(64, 10_000)


def test_both_layers_have_to_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "LIMITS", (str(tmp_path / "memory.max"),))
    x = a_set(columns=20)
    one_each = x.shape[1] * 128 * 8  # bytes of a layer: weights, and two moments in 16 bits
    (tmp_path / "memory.max").write_text(str(int(1.5 * one_each)))
    with pytest.raises(MemoryError, match="a network of 20 features and 20 labels needs"):
        SlideClassifier(epochs=1).fit(x, np.arange(20))


def test_unsigned_pointers_and_columns_that_are_too_large() -> None:
    """Differences of unsigned numbers are never negative; 2**32 + 5 is not 5."""
    with pytest.raises(ValueError, match="the starts of labels rise"):
        SampledLinear(4, 10)(torch.ones(2, 4), (np.array([0, 100, 3], np.uint64), np.array([1, 2, 3])))
    x, two = np.ones(3, np.float32), (2, 10)
    for indptr, indices, wrong in (
        (np.array([0, 3, 2], np.uint32), np.array([1, 2, 3]), "row pointers"),
        (
            np.array([0, 1, 3]),
            np.array([1, 2, 2**32 + 5]),
            "a column 4294967301 in row 1 that is not among its 10",
        ),
    ):
        matrix = SimpleNamespace(indptr=indptr, indices=indices, data=x, shape=two)
        with pytest.raises(ValueError, match=wrong):
            SlideClassifier(epochs=1).fit(matrix, np.array([0, 1]))
