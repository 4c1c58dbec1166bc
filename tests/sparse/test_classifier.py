"""The estimator: it learns, ends early, and says what it cannot take."""

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline

from oddlot.sparse import LSH, Adam, SlideClassifier, Uniform, Unigram
from oddlot.sparse.csr import Csr
from oddlot.sparse.matrices import checked
from tests.sparse.layers import threads
from tests.sparse.sets import X_TEST, Y_TEST, X, Y, trained


def of_scipy(matrix: Csr) -> Any:
    """The same, with numbers of other types."""
    return csr_matrix((matrix.data.astype(np.float64), matrix.indices, matrix.indptr), matrix.shape)


def test_what_is_known_after_training_is_no_attribute_before() -> None:
    fresh = SlideClassifier()
    assert not hasattr(fresh, "classes_")
    assert getattr(fresh, "n_labels_", None) is None
    with pytest.raises(ValueError, match="call fit first"):
        fresh.predict(X)


def test_a_matrix_of_numpy_is_an_array() -> None:
    dense = of_scipy(X).todense()
    assert np.array_equal(trained(epochs=1).predict(dense), trained(epochs=1).predict(X))


def test_batches_of_one_and_a_last_one_of_one() -> None:
    x, y = X.between(0, 33), Y.between(0, 33)
    for batch in (1, 32):
        found = SlideClassifier(hidden=32, epochs=20, batch=batch).fit(x, y)
        assert found.score(x, y) > 0.5


def test_threads_change_no_bit() -> None:
    ends = list[dict[str, torch.Tensor]]()
    for count in (1, 2, 3):
        with threads(count):
            found = SlideClassifier(hidden=32, epochs=3).fit(X, Y)
        ends.append(
            {**found.output.state_dict(), "below": found.input.weight, "bias below": found.input.bias}
        )
    for other in ends[1:]:
        assert all(torch.equal(tensor, other[name]) for name, tensor in ends[0].items())


def test_it_learns() -> None:
    found = trained()
    assert found.score(X_TEST, Y_TEST) > 0.5
    assert found.history[-1]["loss"] < found.history[0]["loss"]
    ends = (found.output.optimizer, found.input.optimizer)
    first = (found.lr, found.input_lr)
    assert 0 < found.bias_optimizer.param_groups[0]["lr"] < 0.01 * found.input_lr, "rates fall"
    for optimizer, lr in zip(ends, first, strict=True):
        assert isinstance(optimizer, Adam)
        assert 0 < optimizer.lr < 0.01 * lr, "rates fall"
    best = found.predict_topk(X_TEST, 3)
    assert best.shape == (600, 3)
    assert (best[:, 0] == found.predict(X_TEST)).all()


def test_matrices_of_scipy_are_taken() -> None:
    found = SlideClassifier(hidden=32, epochs=12, batch=64).fit(of_scipy(X), of_scipy(Y))
    assert found.predict(of_scipy(X_TEST)).tolist() == trained().predict(X_TEST).tolist()
    parts = X_TEST.data[::-1], X_TEST.indices[::-1], X_TEST.indptr[-1] - X_TEST.indptr[::-1]
    backwards = csr_matrix(parts, X_TEST.shape)
    assert not backwards.has_sorted_indices
    assert found.predict(backwards)[::-1].tolist() == found.predict(X_TEST).tolist()


def test_scikit_learn_cross_validates_it() -> None:
    settings: Any = {"hidden": 32, "epochs": 8, "batch": 64}
    x, y = of_scipy(X), of_scipy(Y).toarray() > 0
    scores = cross_val_score(SlideClassifier(**settings), x, y, cv=3)
    assert scores.min() > 0.4
    search = GridSearchCV(SlideClassifier(**settings), {"lr": [1e-6, 3e-3]}, cv=2).fit(x, y)
    assert search.best_params_ == {"lr": 3e-3}


def test_scikit_learn_puts_it_into_a_pipeline() -> None:
    steps = make_pipeline(TfidfTransformer(), SlideClassifier(hidden=32, epochs=8, batch=64))
    assert steps.fit(of_scipy(X), of_scipy(Y)).score(of_scipy(X), of_scipy(Y)) > 0.4


def test_zeros_that_are_stored_are_no_labels() -> None:
    other = Csr(2 * Y.indptr, np.repeat(Y.indices, 2), np.repeat(Y.data, 2), Y.shape)
    other.indices[1::2] = (other.indices[1::2] + 7) % Y.shape[1]
    other.data[1::2] = 0
    one, two = (SlideClassifier(hidden=8, epochs=1).fit(X, y) for y in (Y, other))
    assert torch.equal(one.output.weight, two.output.weight)


def test_progress_is_printed_if_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    trained(epochs=1)
    assert capsys.readouterr().out == ""
    trained(epochs=2, verbose=True, sampler=LSH(found=50))
    told = capsys.readouterr().out
    assert "digits in" in told
    trained(epochs=1, verbose=True)
    assert re.search(
        r"^25 clusters for 400 rows: .* best 10 of .* 200 rows, and 200 by chance$",
        capsys.readouterr().out,
        re.MULTILINE,
    )
    assert re.search(r"epoch 2: 5/10 of it, loss \d", told)
    assert re.search(r"epoch 2: loss \d\S*, active_rows 1\d\d", told)
    assert not logging.getLogger("oddlot.sparse").handlers


def test_the_same_seed_gives_the_same_and_another_one_does_not() -> None:
    one, two, other = trained(epochs=1), trained(epochs=1), trained(epochs=1, seed=1)
    assert torch.equal(one.output.weight, two.output.weight)
    assert not torch.equal(one.output.weight, other.output.weight)


def test_it_ends_early_with_the_best_weights(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="oddlot.sparse"):
        found = trained(epochs=40, validation=0.2, patience=2, lr=0.02)
    precisions = [row["p1"] for row in found.history]
    assert len(precisions) < 40
    assert len(precisions) - 1 - int(np.argmax(precisions)) == 2
    held = np.random.default_rng(0).permutation(3000)[:600]
    assert found.score(X.rows(held), Y.rows(held)) == max(precisions)
    first = found.history[0]
    assert 202 < first["active_rows"] < 402
    assert first["chance_share"] == pytest.approx(200 / first["active_rows"], abs=0.02)
    told = ", ".join(f"{name} {value:.4g}" for name, value in first.items())
    assert f"epoch 1: {told}" in caplog.text


class Spy(Uniform):
    """Notes the labels that are learnt from."""

    seen: set[int]

    def choose(self, crew: Any, hidden: Any, active: Any, seed: int) -> None:
        self.seen.update(active.given.tolist())
        super().choose(crew, hidden, active, seed)


def test_examples_that_are_held_back_teach_nothing() -> None:
    """Each has a label of its own, which is never learnt."""
    y, spy = np.arange(3000) % 2, Spy(20)
    held = np.random.default_rng(0).permutation(3000)[:300]
    y[held], spy.seen = 2 + np.arange(300), set()
    SlideClassifier(spy, hidden=8, epochs=2, validation=0.1).fit(X, y)
    assert spy.seen == {0, 1}


def test_of_few_examples_one_is_held_back() -> None:
    few = X.rows(np.arange(9))
    found = SlideClassifier(hidden=8, epochs=2, validation=0.1).fit(few, Y.rows(np.arange(9)))
    assert {*found.history[0]} >= {"p1"}
    with pytest.raises(ValueError, match=r"validation = 0\.1 leaves none of 1 examples to learn from"):
        SlideClassifier(validation=0.1).fit(X.rows([0]), Y.rows([0]))


@pytest.mark.parametrize("kind", [np.uint8, np.uint64, np.int16])
def test_labels_of_any_whole_number(kind: Any) -> None:
    assert SlideClassifier(hidden=8, epochs=1).fit(X, (np.arange(3000) % 7).astype(kind)).n_labels_ == 7


def test_dense_features_are_taken() -> None:
    one, two = (SlideClassifier(hidden=8, epochs=1).fit(x, Y) for x in (of_scipy(X), of_scipy(X).toarray()))
    assert torch.equal(one.output.weight, two.output.weight)


def test_a_share_of_no_examples_is_none() -> None:
    with pytest.raises(ValueError, match="X has no examples, of which a share could be told"):
        trained(epochs=1).score(X.rows([]), Y.rows([]))


def test_part_by_part() -> None:
    found = SlideClassifier(Uniform(50), hidden=32, batch=64)
    for _ in range(8):
        for low in range(0, 3000, 1000):
            found.partial_fit(X.rows(np.arange(low, low + 1000)), Y.rows(np.arange(low, low + 1000)))
    assert found.score(X_TEST, Y_TEST) > 0.5
    assert len(found.history) == 24


def test_one_label_each() -> None:
    each = Y.indices[Y.indptr[:-1]]
    found = SlideClassifier(hidden=32, epochs=8, batch=64).fit(X, each)
    assert found.n_labels_ == each.max() + 1
    assert found.score(X, each) > 0.4


def test_labels_that_come_later(tmp_path: Path) -> None:
    """Or in another fold of scikit-learn's."""
    each = Y.indices[Y.indptr[:-1]]
    found = SlideClassifier(labels=400, hidden=8).partial_fit(X, np.minimum(each, 3))
    assert found.partial_fit(X, each).n_labels_ == 400
    one_each = SlideClassifier(labels=400, hidden=32, batch=64, epochs=8)
    for scoring in (None, "accuracy"):
        assert cross_val_score(one_each, of_scipy(X), each, cv=KFold(3), scoring=scoring).min() > 0.2


NAN_IN_ROW_7 = np.where(np.arange(len(X.data)) == X.indptr[7], np.nan, X.data)


def changed(matrix: Csr, **parts: Any) -> Any:
    return SimpleNamespace(
        **{**{n: getattr(matrix, n) for n in ("indptr", "indices", "data", "shape")}, **parts}
    )


@pytest.mark.parametrize(
    ("x", "y", "told"),
    [
        (np.zeros((3000, 800, 1)), Y, r"X is an array \(3000, 800, 1\): one of two dimensions is expected"),
        (X, Y.indices[Y.indptr[:-1]][:, None], r"y is an array \(3000, 1\): y\.ravel\(\) is one label each"),
        (X, np.full((3000, 400), 0.5), r"y is an array \(3000, 400\) of float64: a CSR matrix, one"),
        (X, np.arange(3000.0), r"y is an array \(3000,\) of float64"),
        (X, [[0], [1, 2]], "y has rows of different lengths"),
        (X, of_scipy(Y).tolil(), r"y is a matrix in the form lil: its \.tocsr\(\)"),
        (X, "labels", r"y is an array \(\) of <U6"),
        ("features", Y, "X is str, no CSR matrix"),
        (changed(X, data=X.data + 1j), Y, "X has values of dtype complex64: real numbers"),
        (
            changed(X, data=np.full(len(X.data), 1e300)),
            Y,
            r"a value in row 0 that is not finite in float32: 1e\+300",
        ),
        (
            X,
            Csr(np.zeros(3001, np.int64), Y.indices[:0], Y.data[:0], Y.shape),
            "y has no label for any of 3,000",
        ),
        (of_scipy(X)[:0], of_scipy(Y)[:0], "y has no label for any of 0 examples"),
        (csr_matrix((3000, 0)), Y, "X has no columns"),
        (X, np.full(3000, -1), "y has a label -1: labels are counted from 0"),
        (X, np.arange(5), "X has 3,000 examples, y 5"),
        (
            changed(X, data=np.where(np.arange(len(X.data)) == X.indptr[7], np.nan, X.data)),
            Y,
            "a value in row 7 that is",
        ),
        (changed(X, shape=(3000, 5)), Y, r"X has a column \d+ in row \d+ that is not among its 5"),
        (changed(X, indptr=X.indptr[::-1]), Y, "X is no CSR matrix: its row pointers"),
    ],
)
def test_what_it_cannot_be_trained_on(x: Any, y: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SlideClassifier(hidden=8).fit(x, y)


def test_what_it_cannot_predict() -> None:
    with pytest.raises(ValueError, match="it has not been trained"):
        SlideClassifier().predict(X)
    found = trained(epochs=1)
    with pytest.raises(ValueError, match="X has 7 features, in training there were 800"):
        found.predict(Csr(np.array([0, 0]), np.zeros(0, np.int32), np.zeros(0, np.float32), (1, 7)))
    with pytest.raises(ValueError, match=r"k = 0 must be a whole number, from 1 to 400"):
        found.predict_topk(X_TEST, 0)
    with pytest.raises(ValueError, match="y has 7 labels, there are 400"):
        found.partial_fit(X, Csr(Y.indptr, np.zeros(len(Y.indices), np.int32), Y.data, (3000, 7)))


def test_rates_that_diverge_are_told() -> None:
    """At the first batch that is not finite, on which nothing steps."""
    found = SlideClassifier(hidden=32, batch=64, lr=1e30, input_lr=1e30)
    told = r"the loss of batch \d+ of epoch 1 is \S+, with a gradient that is not finite: lower lr"
    with pytest.raises(FloatingPointError, match=told):
        found.fit(X, Y)
    with pytest.raises(ValueError, match="call fit first"):
        found.predict(X)


def test_a_fit_that_is_refused_leaves_what_was_learnt() -> None:
    found = trained(epochs=1)
    before = found.predict(X_TEST)
    found.validation = 0.5
    with pytest.raises(ValueError, match=r"validation = 0\.5 leaves none of 1 examples to learn from"):
        found.fit(X.rows(np.array([0])), Y.rows(np.array([0])))
    assert (found.predict(X_TEST) == before).all()


def test_whatever_a_fit_raises_leaves_what_was_learnt() -> None:
    """Here a sampler that is for as many labels as another set has."""
    found = trained(epochs=1)
    before, history = found.predict(X_TEST), found.history
    found.sampler = Unigram(counts=np.ones(5, np.int64))
    with pytest.raises(ValueError, match="labels were counted for 5 rows, of 400 that there are"):
        found.fit(X, Y)
    assert (found.predict(X_TEST) == before).all()
    assert found.history == history
    fresh = SlideClassifier(found.sampler)
    with pytest.raises(ValueError, match="labels were counted for 5"):
        fresh.fit(X, Y)
    with pytest.raises(ValueError, match="call fit first"):
        fresh.predict(X_TEST)


def test_examples_without_labels_teach_nothing() -> None:
    """Not even through what Adam knows of the batches before."""
    labelled = np.arange(0, len(X), 2)
    counts = np.diff(Y.indptr) * (np.arange(len(X)) % 2 == 0)
    there = np.repeat(counts > 0, np.diff(Y.indptr))
    some = Csr(np.concatenate([[0], np.cumsum(counts)]), Y.indices[there], Y.data[there], Y.shape)
    found = trained(epochs=1)
    before = {name: value.clone() for name, value in found.model.state_dict().items()}
    found.partial_fit(X, Csr(np.zeros_like(Y.indptr), Y.indices[:0], Y.data[:0], Y.shape))
    assert np.isnan(found.history[-1]["loss"])
    assert all(torch.equal(value, before[name]) for name, value in found.model.state_dict().items())
    whole, part = (
        SlideClassifier(hidden=8, batch=64, epochs=1, validation=0.0).fit(*given)
        for given in ((X, some), (X.rows(labelled), Y.rows(labelled)))
    )
    learnt = part.model.state_dict()
    assert all(torch.equal(value, learnt[name]) for name, value in whole.model.state_dict().items())


def test_arrays_of_the_right_kind_are_not_copied() -> None:
    found = checked(Csr(X.indptr, X.indices, X.data, X.shape), "X")
    assert np.shares_memory(found.data, X.data)
    assert np.shares_memory(found.indices, X.indices)


def test_the_input_s_bias_learns_too() -> None:
    assert trained(epochs=1).input.bias.detach().abs().min() > 0


def test_a_batch_that_diverges_leaves_what_was_learnt() -> None:
    found = trained(epochs=1)
    before = {name: value.clone() for name, value in found.model.state_dict().items()}
    with pytest.raises(FloatingPointError, match="the loss of batch 1 of epoch 2 is"):
        found.partial_fit(Csr(X.indptr, X.indices, X.data * np.float32(1e37), X.shape), Y)
    assert all(torch.equal(value, before[name]) for name, value in found.model.state_dict().items())


def test_settings_are_asked_for_and_changed_as_scikit_learn_does() -> None:
    """Its `clone` wants the very objects back that it made a classifier with."""
    sampler = Uniform(10)
    first = SlideClassifier(sampler, hidden=16, lr=0.01)
    params = first.get_params(deep=False)
    twin = SlideClassifier(**params)
    assert all(twin.get_params()[name] is value for name, value in params.items())
    assert first.set_params(hidden=32) is first
    assert (first.hidden, first.lr, first.sampler) == (32, 0.01, sampler)
    with pytest.raises(ValueError, match="SlideClassifier has no setting 'depth'"):
        first.set_params(depth=3)
    with pytest.raises(ValueError, match="hidden = 0 must be a whole number"):
        first.set_params(hidden=0)
    with pytest.raises(ValueError, match="is no sampler: such as"):
        first.set_params(sampler=3)
