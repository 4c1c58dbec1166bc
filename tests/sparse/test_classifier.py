"""The estimator: training, early stopping, progress and errors."""

import logging
import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from oddlot.sparse import LSH, Adam, SlideClassifier, Uniform, Unigram
from oddlot.sparse.csr import Csr
from oddlot.sparse.matrices import checked
from tests.sparse.layers import logged, threads
from tests.sparse.sets import X_TEST, Y_TEST, X, Y, fresh, trained
from tests.transcripts import mask, raises, transcribe

pytestmark = pytest.mark.usefixtures("one_thread")
EACH = Y.indices[Y.indptr[:-1]]
"""One label per example."""


def of_scipy(matrix: Csr) -> Any:
    """Return the matrix as a SciPy matrix with values of another dtype."""
    return csr_matrix((matrix.data.astype(np.float64), matrix.indices, matrix.indptr), matrix.shape)


def test_batches_of_one_example_train() -> None:
    x, y = X.between(0, 9), Y.between(0, 9)
    for batch in (1, 8):
        found = fresh(epochs=10, batch=batch).fit(x, y)
        assert found.score(x, y) > 0.5


def test_fit_is_bitwise_equal_on_any_number_of_threads() -> None:
    ends = list[dict[str, torch.Tensor]]()
    for count in (1, 2, 3):
        with threads(count):
            found = fresh(epochs=3).fit(X, Y)
        ends.append(
            {**found.output.state_dict(), "below": found.input.weight, "bias below": found.input.bias}
        )
    for other in ends[1:]:
        assert all(torch.equal(tensor, other[name]) for name, tensor in ends[0].items())


def test_classifier_learns() -> None:
    found = trained()
    assert found.score(X, Y) > 0.9
    assert found.score(X_TEST, Y_TEST) > 0.3
    assert found.history[-1]["loss"] < found.history[0]["loss"]
    assert found.input.bias.detach().abs().min() > 0
    ends = (found.output.optimizer, found.input.optimizer)
    first = (found.lr, found.input_lr)
    assert 0 < found.bias_optimizer.param_groups[0]["lr"] < 0.01 * found.input_lr, "rates fall"
    for optimizer, lr in zip(ends, first, strict=True):
        assert isinstance(optimizer, Adam)
        assert 0 < optimizer.lr < 0.01 * lr, "rates fall"
    best = found.predict_topk(X_TEST, 3)
    assert best.shape == (600, 3)
    assert (best[:, 0] == found.predict(X_TEST)).all()


def stored_zeros() -> Csr:
    """Return the labels with additional explicit zeros."""
    other = Csr(2 * Y.indptr, np.repeat(Y.indices, 2), np.repeat(Y.data, 2), Y.shape)
    other.indices[1::2] = (other.indices[1::2] + 7) % Y.shape[1]
    other.data[1::2] = 0
    return other


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (of_scipy(X), of_scipy(Y)),
        (of_scipy(X).toarray(), of_scipy(Y).toarray()),
        (of_scipy(X).todense(), Y),
        (X, stored_zeros()),
    ],
    ids=["scipy", "arrays", "matrix", "zeros"],
)
def test_scipy_and_dense_matrices_give_the_same_weights(x: Any, y: Any) -> None:
    assert torch.equal(fresh(epochs=1).fit(x, y).output.weight, trained(epochs=1).output.weight)


def test_unsorted_features_give_the_same_predictions() -> None:
    found = trained(epochs=1)
    parts = X_TEST.data[::-1], X_TEST.indices[::-1], X_TEST.indptr[-1] - X_TEST.indptr[::-1]
    backwards = csr_matrix(parts, X_TEST.shape)
    assert not backwards.has_sorted_indices
    assert found.predict(backwards)[::-1].tolist() == found.predict(X_TEST).tolist()


def test_works_with_scikit_learn_cross_validation() -> None:
    from sklearn.model_selection import GridSearchCV, cross_val_score

    x, y = of_scipy(X), of_scipy(Y).toarray() > 0
    assert cross_val_score(fresh(epochs=4), x, y, cv=3).min() > 0.2
    search = GridSearchCV(fresh(epochs=2), {"lr": [1e-6, 3e-2]}, cv=2, refit=False).fit(x, y)
    assert search.best_params_ == {"lr": 3e-2}


def test_works_in_a_scikit_learn_pipeline() -> None:
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.pipeline import make_pipeline

    steps = make_pipeline(TfidfTransformer(), fresh(epochs=4))
    assert steps.fit(of_scipy(X), of_scipy(Y)).score(of_scipy(X), of_scipy(Y)) > 0.4


def test_verbose_prints_progress(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The output is the same as the log."""
    fresh(epochs=1).fit(X, Y)
    assert capsys.readouterr().out == ""
    for sampler in (None, LSH(digits=4, tables=9)):
        fresh(sampler, epochs=2, verbose=True).fit(X, Y)
    assert not logging.getLogger("oddlot.sparse").handlers
    message = capsys.readouterr().out
    assert message.splitlines() == caplog.messages
    assert (25, 400, 10, 200, 200) in logged(caplog), "rows and clusters"
    assert ("simhash", 400) in [some[:2] for some in logged(caplog)]
    assert (2, 5, 10) in [some[:3] for some in logged(caplog)], "half of the second epoch"
    for line in message.splitlines():
        transcribe(line, number=r"\d[\d.e+-]*")


def test_seed_determines_the_weights() -> None:
    one, two, other = (fresh(epochs=1, seed=seed).fit(X, Y) for seed in (0, 0, 1))
    assert torch.equal(one.output.weight, two.output.weight)
    assert not torch.equal(one.output.weight, other.output.weight)


def test_early_stopping_keeps_the_best_weights(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="oddlot.sparse"):
        found = fresh(epochs=40, validation=0.2, patience=2).fit(X, Y)
    precisions = [row["p1"] for row in found.history]
    assert len(precisions) < 40
    assert len(precisions) - 1 - int(np.argmax(precisions)) == 2
    held = np.random.default_rng(0).permutation(1200)[:240]
    assert found.score(X.rows(held), Y.rows(held)) == max(precisions)
    first = found.history[0]
    assert 202 < first["active_rows"] < 402
    assert first["chance_share"] == pytest.approx(200 / first["active_rows"], abs=0.02)
    (message,) = (some[1] for some in logged(caplog) if len(some) == 2 and some[0] == 1)
    assert [*map(float, re.findall(r"(?<= )[\d.]+", message))] == pytest.approx([*first.values()], rel=1e-3)


class Spy(Uniform):
    """A sampler that records the labels of training batches."""

    seen: set[int]

    def choose(self, crew: Any, hidden: Any, active: Any, seed: int) -> None:
        self.seen.update(active.given.tolist())
        super().choose(crew, hidden, active, seed)


def test_validation_examples_are_not_trained_on() -> None:
    """Each held-out example has a unique label, and this label never occurs in training."""
    y, spy = np.arange(1200) % 2, Spy(20)
    held = np.random.default_rng(0).permutation(1200)[:120]
    y[held], spy.seen = 2 + np.arange(120), set()
    SlideClassifier(spy, hidden=8, epochs=2, validation=0.1).fit(X, y)
    assert spy.seen == {0, 1}


def test_at_least_one_example_is_used_for_validation() -> None:
    few = X.rows(np.arange(9))
    found = SlideClassifier(hidden=8, epochs=2, validation=0.1).fit(few, Y.rows(np.arange(9)))
    assert {*found.history[0]} >= {"p1"}
    with raises(ValueError, "nothing_to_learn_from", validation=0.1, examples=1):
        SlideClassifier(validation=0.1).fit(X.rows([0]), Y.rows([0]))


@pytest.mark.parametrize("kind", [np.uint8, np.uint64, np.int16])
def test_labels_of_any_integer_dtype_are_accepted(kind: Any) -> None:
    assert SlideClassifier(hidden=8, epochs=1).fit(X, (np.arange(1200) % 7).astype(kind)).n_labels_ == 7


def test_partial_fit_learns() -> None:
    found = fresh(Uniform(50))
    for _ in range(4):
        for low in range(0, 1200, 400):
            found.partial_fit(X.between(low, low + 400), Y.between(low, low + 400))
    assert found.score(X, Y) > 0.5
    assert len(found.history) == 12


def test_one_label_per_example_is_accepted() -> None:
    found = fresh(epochs=4).fit(X, EACH)
    assert found.n_labels_ == EACH.max() + 1
    assert found.score(X, EACH) > 0.4


def test_labels_setting_allows_labels_that_appear_later() -> None:
    """Labels may also be missing from a cross-validation fold of scikit-learn."""
    from sklearn.model_selection import KFold, cross_val_score

    found = SlideClassifier(labels=400, hidden=8).partial_fit(X, np.minimum(EACH, 3))
    assert found.partial_fit(X, EACH).n_labels_ == 400
    for scoring in (None, "accuracy"):
        scores = cross_val_score(fresh(labels=400, epochs=4), of_scipy(X), EACH, cv=KFold(2), scoring=scoring)
        assert scores.min() > 0.1


BY_PROCESSOR = {"number": r"(?<= )\S*(nan|inf|e\+)\S*(?=,)", "batch": r"(?<=batch )\d+"}


def test_diverging_fit_raises() -> None:
    """The error is raised at the first batch that is not finite, before any step on it."""
    found = fresh(lr=1e30, input_lr=1e30)
    mask(**BY_PROCESSOR)
    with raises(FloatingPointError, "diverged", epoch=1):
        found.fit(X, Y)
    with raises(ValueError, "not_fitted"):
        found.predict(X)


def test_failed_fit_keeps_the_trained_model() -> None:
    """The error of a sampler with counts for another number of labels does not change the model."""
    found = trained(epochs=1)
    before, history = found.predict(X_TEST), found.history
    found.validation = 0.5
    with raises(ValueError, "nothing_to_learn_from", validation=0.5, examples=1):
        found.fit(X.rows([0]), Y.rows([0]))
    found.sampler = Unigram(counts=np.ones(5, np.int64))
    other = SlideClassifier(found.sampler)
    for one in (found, other):
        with raises(ValueError, "different_lengths", name="counts", given=5, expected=400):
            one.fit(X, Y)
    assert (found.predict(X_TEST) == before).all()
    assert found.history == history
    with raises(ValueError, "not_fitted"):
        other.predict(X_TEST)


def test_examples_without_labels_change_no_weights() -> None:
    """Adam's moments from earlier batches do not change the weights either."""
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


def test_arrays_with_the_right_dtype_are_not_copied() -> None:
    found = checked(Csr(X.indptr, X.indices, X.data, X.shape), "X")
    assert np.shares_memory(found.data, X.data)
    assert np.shares_memory(found.indices, X.indices)


def test_diverging_batch_keeps_the_trained_model() -> None:
    found = trained(epochs=1, normalize=False)
    before = {name: value.clone() for name, value in found.model.state_dict().items()}
    mask(**BY_PROCESSOR)
    with raises(FloatingPointError, "diverged", batch=1, epoch=2):
        found.partial_fit(Csr(X.indptr, X.indices, X.data * np.float32(1e37), X.shape), Y)
    assert all(torch.equal(value, before[name]) for name, value in found.model.state_dict().items())


def test_get_params_and_set_params_follow_scikit_learn() -> None:
    """scikit-learn's `clone` requires the same objects that were passed to the constructor."""
    sampler = Uniform(10)
    first = SlideClassifier(sampler, hidden=16, lr=0.01)
    params = first.get_params(deep=False)
    twin = SlideClassifier(**params)
    assert all(twin.get_params()[name] is value for name, value in params.items())
    assert first.set_params(hidden=32) is first
    assert (first.hidden, first.lr, first.sampler) == (32, 0.01, sampler)
    with raises(ValueError, "unknown_name", kind="setting", given="depth"):
        first.set_params(depth=3)
    with raises(ValueError, "invalid_value", name="hidden", given=0):
        first.set_params(hidden=0)
    with raises(ValueError, "not_a_sampler", given=3):
        first.set_params(sampler=3)
