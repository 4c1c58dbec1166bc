"""Tests of the workload `char_lm`: its text, its model, its options and training."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oddlot import Machine, Simulated, Synchronous, fit
from oddlot.core.support.errors import UsageError
from oddlot.workloads.causal_transformer import CausalTransformer, adamw_of_matrices
from oddlot.workloads.char_lm import FILE, HELD_OUT, Perplexity, char_lm, generated, read
from tests.transcripts import raises


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ODDLOT_DATA", raising=False)


def model(tied: bool = True) -> CausalTransformer:
    torch.manual_seed(0)
    return CausalTransformer(11, context=8, width=12, layers=2, heads=3, dropout=0.1, tied=tied).eval()


def test_targets_are_the_next_characters(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("ab" * 30 + "zy" * 10 + "\n", encoding="utf-8")
    job = char_lm(text=str(tmp_path / "my.txt"), context=4, heads=1, width=2)
    (inputs, targets), (x_eval, y_eval) = job.train_data, job.eval_data
    assert (len(x_eval), len(inputs)) == (int(20 * HELD_OUT), 18)
    for rows, following in ((inputs, targets), (x_eval, y_eval)):
        assert (rows.dtype, rows.shape[1]) == (np.int64, 4)
        np.testing.assert_array_equal(rows.ravel()[1:], following.ravel()[:-1])
    letters = np.array(sorted(set("abzy\n")))
    assert "".join(letters[inputs[0]]) == "abab"
    assert "".join(letters[y_eval[-1]]) == "yzy\n"


def test_text_is_found_in_all_locations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").mkdir()
    packed = tmp_path / f"{FILE}.gz"
    packed.write_bytes(gzip.compress(b"packed"))
    assert read(str(tmp_path)) == "packed"
    (tmp_path / "text" / FILE).write_text("plain", encoding="utf-8")
    monkeypatch.setenv("ODDLOT_DATA", str(tmp_path))
    assert (read(), read(text=str(packed))) == ("plain", "packed")


def test_missing_or_short_text_is_rejected(tmp_path: Path) -> None:
    with raises(UsageError, "missing_data", dataset="char_lm", files=[FILE]):
        char_lm(str(tmp_path))
    with raises(UsageError, "too_few_samples", characters=100, context=64):
        char_lm(tokens=100)


def test_generated_text_is_used_without_a_file(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert read() == generated(200_000)
    assert FILE in caplog.text
    assert generated(1000) == generated(200_000)[: len(generated(1000))]
    assert len(set(generated(10_000).splitlines())) > 100


@pytest.mark.parametrize(
    ("options", "name", "given"),
    [
        ({"layers": 0}, "layers", 0),
        ({"width": 10, "heads": 4}, "width", 10),
        ({"tokens": -1}, "tokens", -1),
    ],
)
def test_invalid_option_is_rejected(options: dict[str, int], name: str, given: int) -> None:
    with raises(UsageError, "invalid_value", name=name, given=given):
        char_lm(**options)  # type: ignore[arg-type]  # all are numbers


def test_predictions_do_not_depend_on_later_tokens() -> None:
    tokens = torch.randint(11, (2, 8), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 5:] = (tokens[:, 5:] + 1) % 11
    one, other = (model()(each) for each in (tokens, changed))
    torch.testing.assert_close(one[:, :5], other[:, :5])
    assert not torch.allclose(one[:, 5:], other[:, 5:])
    torch.testing.assert_close(model()(tokens[:, :3]), one[:, :3])


def test_tied_output_layer_shares_the_embedding() -> None:
    tied, untied = (sum(each.numel() for each in model(which).parameters()) for which in (True, False))
    assert untied - tied == 11 * 12
    assert model().head.weight is not model(tied=False).head.weight
    same = model()
    assert same.head.weight is same.embedding.weight


def test_only_matrices_decay() -> None:
    network = model()
    names = {id(each): name for name, each in network.named_parameters()}
    matrices, vectors = adamw_of_matrices(0.01, 0.1, network).param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert len(matrices["params"]) + len(vectors["params"]) == len(names)
    assert all(
        name.endswith("bias") or "norm" in name for name in (names[id(one)] for one in vectors["params"])
    )


def test_perplexity_is_the_exponential_of_the_mean_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 8, 11, generator=generator)
    targets = torch.randint(11, (3, 8), generator=generator)
    metric = Perplexity()
    for some in (slice(0, 1), slice(1, 3)):
        metric.update(logits[some], targets[some])
    whole: Tensor = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert metric.compute() == pytest.approx(float(whole.exp()), rel=1e-5)
    metric.reset()
    metric.update(torch.zeros(1, 8, 11), targets[:1])
    assert metric.compute() == pytest.approx(11, rel=1e-5)


def test_model_learns_the_generated_text() -> None:
    """A model that ignores the order of the characters has a perplexity of 17."""
    job = char_lm(tokens=20_000, context=32, width=32, layers=1, lr=0.01)
    job.device = "cpu"
    run = fit(job, Synchronous(), Simulated([Machine("a")]), until="epochs>=4", quiet=True)
    assert run.metrics["perplexity"] < 6
    assert run.loss == pytest.approx(np.log(run.metrics["perplexity"]), rel=1e-4)
