"""Predictions of the estimator that score only some labels, with a measured recall."""

import logging
import pickle
import re

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from oddlot.sparse.csr import Csr
from oddlot.sparse.topk import Search
from tests.sparse.sets import X_TEST, Y_TEST, X, Y, trained
from tests.transcripts import transcribe

pytestmark = pytest.mark.usefixtures("one_thread")


def test_verbose_reports_clustering_for_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    found = trained(epochs=1, verbose=True)
    capsys.readouterr()
    found.predict(X_TEST.rows(np.arange(511)), exact=False)
    assert capsys.readouterr().out == ""
    found.predict(X_TEST.rows([511]), exact=False)
    message = capsys.readouterr().out
    assert re.findall(r"\d+", message)[0] == str(found.n_labels_)
    transcribe(message, number=r"\d[\d.]*")
    found.predict(X_TEST, exact=False)
    assert capsys.readouterr().out == ""


def test_reported_recall_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """If examples come one at a time, all labels are scored until enough examples are known to measure the recall."""
    monkeypatch.setattr("oddlot.sparse.topk.SHARE_THAT_PAYS", 1.0)
    found = trained(epochs=3)
    many = found.predict(X, exact=False)
    message, exact = found.recall_, found.predict(X)
    assert message < 1.0
    assert (many == exact).mean() == pytest.approx(message, abs=0.05)
    found._search = None
    for asked in range(512):
        assert found.recall_ == 1.0, asked
        found.predict(X.rows([asked]), exact=False)
    assert found.recall_ == pytest.approx(message, abs=0.05), "of 512 others"
    assert found.recall_ < 1.0


def test_recall_is_measured_on_random_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recall is measured on random examples, because the file may be sorted by label."""
    found, show, shown = trained(epochs=1), Search.show, list[bytes]()

    def watched(self: Search, hidden: NDArray[np.float32]) -> None:
        shown.extend(vector.tobytes() for vector in hidden)
        show(self, hidden)

    monkeypatch.setattr(Search, "show", watched)
    found.predict(X, exact=False)
    first = {vector.tobytes() for vector in found._hidden(X.rows(np.arange(400))).detach().numpy()}
    assert 0.2 < np.mean([vector in first for vector in shown[:512]]) < 0.5


def test_pickle_leaves_out_clusters() -> None:
    """A pickle has no clusters, because they take the same memory as the weights."""
    found = trained(epochs=1)
    before = len(pickle.dumps(found))
    few = found.predict(X_TEST, exact=False)
    assert len(pickle.dumps(found)) == pytest.approx(before, rel=0.01)
    assert pickle.loads(pickle.dumps(found)).predict(X_TEST, exact=False).tolist() == few.tolist()


def test_training_rebuilds_clusters_for_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oddlot.sparse.topk.SHARE_THAT_PAYS", 1.0)
    found = trained(epochs=1)
    found.predict(X_TEST, exact=False)
    assert 0.9 <= found.recall_ < 1.0
    found.partial_fit(X, Y)
    after = found.predict(X_TEST, exact=False)
    found._search = None
    assert after.tolist() == found.predict(X_TEST, exact=False).tolist()
    other = trained(epochs=1, seed=7)
    found.model.load_state_dict(other.model.state_dict())
    found.seed = 7
    assert found.predict(X_TEST, exact=False).tolist() == other.predict(X_TEST, exact=False).tolist()
    found.predict(X_TEST)
    assert found.recall_ == 1.0


def test_all_labels_are_scored_if_there_are_few(caplog: pytest.LogCaptureFixture) -> None:
    found = trained(epochs=1)
    with caplog.at_level(logging.INFO, logger="oddlot.sparse"):
        some = found.predict_topk(X_TEST, 5, exact=False, recall=0.99)
    assert (some == found.predict_topk(X_TEST, 5)).all()
    assert found.recall_ == 1.0
    transcribe(caplog.messages[-1])


def test_approximate_prediction_reports_its_recall(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oddlot.sparse.topk.SHARE_THAT_PAYS", 1.0)
    found = trained()
    with caplog.at_level(logging.INFO, logger="oddlot.sparse"):
        some = found.predict_topk(X_TEST, 5, exact=False, recall=0.9)
    assert 0.9 <= found.recall_ < 1.0
    assert f"{found.recall_:.3f}" in caplog.messages[-1]
    transcribe(caplog.messages[-1], probes=r"^\d+", recall=r"0\.9\d*")
    exact = found.predict_topk(X_TEST, 5)
    assert (exact[:, :, None] == some[:, None, :]).any(2).mean() > 0.85
    assert found.score(X_TEST, Y_TEST, exact=False) > 0.95 * found.score(X_TEST, Y_TEST)
    assert (found.predict(X_TEST.rows(np.array([0])), exact=False) >= 0).all(), "one alone"


def test_example_without_features_is_scored_by_the_biases() -> None:
    found = trained(epochs=1)
    none = Csr(np.array([0, 0]), np.zeros(0, np.int32), np.zeros(0, np.float32), (1, 800))
    hidden = torch.relu(found.input.bias.detach())
    assert found.predict(none)[0] == int(found.output(hidden[None]).argmax())
    assert found.predict(X.rows(np.arange(0))).shape == (0,)
