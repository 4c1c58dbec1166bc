"""Tests of the workload `digit_autoencoder`: data, options, stages and training."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oddlot import Synchronous, fit_stages
from oddlot.core.support.errors import UsageError
from oddlot.history.replay import replay
from oddlot.workloads.digit_autoencoder import DigitNetwork, digit_autoencoder
from oddlot.workloads.digit_images import digit_images, scaled_up
from oddlot.workloads.registry import load_workload
from tests.command import Oddlot
from tests.fits import equals
from tests.transcripts import raises, transcribe
from tests.workloads.test_mnist import write_few

SMALL: dict[str, Any] = {"widths": [784, 32, 16], "batch_size": 32}
FLAGS = ("--set", "workload.widths=[784,20,10]", "--set", "workload.limit=200", "--workers", "1")


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ODDLOT_DATA", raising=False)


# --- data --------------------------------------------------------------------------------------------


def test_packaged_digits_are_scaled_into_the_box_of_mnist() -> None:
    full = scaled_up(np.full((2, 8, 8), 16, np.uint8))
    assert full.shape == (2, 28, 28)
    assert full[:, 4:24, 4:24].min() == 255
    assert full.sum() == 2 * 400 * 255
    (train, classes), (test, _), is_mnist = digit_images()
    assert (train.shape, test.shape, is_mnist) == ((1437, 784), (360, 784), False)
    assert train.max() > 250
    assert classes.max() == 9


def test_mnist_is_used_if_it_is_present(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_few(tmp_path)
    assert digit_images(str(folder))[0][0].shape == (12, 784)
    monkeypatch.setenv("ODDLOT_DATA", str(folder))
    (images, classes), _, is_mnist = digit_images()
    assert is_mnist
    assert images[:, 0].tolist() == (classes * 20).tolist()


def test_missing_mnist_is_an_error_only_if_its_folder_is_given(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, empty = write_few(tmp_path), str(tmp_path_factory.mktemp("empty"))
    monkeypatch.setenv("ODDLOT_DATA", empty)
    assert not digit_images()[2]
    with raises(UsageError, "missing_data", dataset="mnist"):
        digit_autoencoder(data_dir=empty)
    (folder / "t10k-labels-idx1-ubyte").unlink()
    monkeypatch.setenv("ODDLOT_DATA", str(folder))
    with raises(UsageError, "missing_data", others_in=str(folder)):
        digit_autoencoder()


# --- stages ------------------------------------------------------------------------------------------


def test_network_has_the_published_layers() -> None:
    model = DigitNetwork()
    shapes = {name: tuple(one.shape) for name, one in model.named_parameters() if name.endswith("weight")}
    assert [shapes[f"encoder.{at}.weight"] for at in range(4)] == [
        (1000, 784),
        (500, 1000),
        (250, 500),
        (30, 250),
    ]
    assert [shapes[f"decoder.{at}.weight"][0] for at in range(4)] == [250, 500, 1000, 784]
    assert [shapes[f"classifier.{at}.weight"][0] for at in range(4)] == [1000, 500, 250, 10]
    pixels = torch.rand(3, 784)
    code = model.encode(pixels)
    assert code.shape == (3, 30)
    assert model.decode(code).min() > 0
    assert model.classify(pixels).shape == (3, 10)


def test_options_make_the_stages() -> None:
    def names(**options: Any) -> list[tuple[str, int]]:
        return [(stage.name, stage.epochs) for stage in digit_autoencoder(**{**SMALL, **options})]

    assert names(pretrain_epochs=3, autoencoder_epochs=4, classifier_epochs=5) == [
        ("layer_1_start", 1),
        ("layer_1", 2),
        ("layer_2_start", 1),
        ("layer_2", 2),
        ("autoencoder", 4),
        ("classifier", 5),
    ]
    assert names(pretrain_epochs=0, autoencoder_epochs=0, classifier_epochs=5) == [("classifier", 5)]
    assert names(recipe="paper") == [("layer_1", 20), ("layer_2", 20), ("softmax", 10)]
    paper = digit_autoencoder(recipe="paper", limit=300)
    assert [stage.job.batch_size for stage in paper] == [300, 300, 128]
    invalid: dict[str, dict[str, Any]] = {
        "widths": {"widths": [100, 10]},
        "pretrain_epochs": {"pretrain_epochs": -1},
        "limit": {"limit": 1438},
        "classifier_epochs": {"pretrain_epochs": 0, "autoencoder_epochs": 0, "classifier_epochs": 0},
    }
    for name, options in invalid.items():
        with raises(UsageError, "invalid_value", name=name):
            digit_autoencoder(**options)
    with raises(UsageError, "unknown_name", given="papre"):
        digit_autoencoder(recipe="papre")


def test_packaged_digits_are_learned(tmp_path: Path) -> None:
    """Pre-training halves the error of a layer, and fine-tuning lowers that of the image."""
    stages = digit_autoencoder(**SMALL, pretrain_epochs=6, autoencoder_epochs=10, classifier_epochs=20)
    run = fit_stages(stages, Synchronous(), equals(1), out=tmp_path, quiet=True)
    assert replay(tmp_path).difference is None
    errors = [row["layer_error"] for row in run.history if "layer_error" in row]
    images = [row["reconstruction_error"] for row in run.history if "reconstruction_error" in row]
    assert errors[5] < 0.5 * errors[0]
    assert images[-1] < 0.8 * images[0]
    assert run.summary["accuracy"] >= 0.9


@pytest.mark.parametrize("workers", [1, 3])
def test_paper_recipe_makes_one_update_per_epoch(tmp_path: Path, workers: int) -> None:
    stages = digit_autoencoder(recipe="paper", widths=[784, 32, 16], pretrain_epochs=3, limit=256)
    run = fit_stages(stages[:2], Synchronous(), equals(workers), out=tmp_path, quiet=True)
    assert run.summary["versions"] == 6
    biases = [one for name, one in run.model.named_parameters() if name.endswith("bias")]
    assert not any(bias.any() for bias in biases)


# --- the command line --------------------------------------------------------------------------------


@pytest.mark.usefixtures("fork_server", "warm_start")
def test_train_resumes_in_its_stage(oddlot: Oddlot) -> None:
    epochs = [("pretrain", 1), ("autoencoder", 1), ("classifier", 2)]
    sets = [word for name, count in epochs for word in ("--set", f"workload.{name}_epochs={count}")]
    run = oddlot.json("train", "digit_autoencoder", *FLAGS, *sets)
    assert (run["stage"], run["ended"], run["samples_merged"]) == ("classifier", "epochs>=5", 1000)
    more = ("--set", "workload.classifier_epochs=3", "--new-segment", "--resume", "latest")
    longer = oddlot.json("train", "digit_autoencoder", *more)
    assert (longer["stage"], longer["samples_merged"]) == ("classifier", 1200)
    again = oddlot("train", "digit_autoencoder", "--resume", "latest")
    assert again.code == 0
    transcribe(again.out.splitlines()[-1])
    settings = json.loads(Path(longer["run_dir"], "run.json").read_text())
    assert [one["stage"] for one in settings["segments"]] == [*settings["about"]["stages"], "classifier"]
    assert "stage autoencoder" in oddlot("report", longer["run_dir"]).out
    assert oddlot("replay", longer["run_dir"]).code == 0


def test_settings_of_a_single_job_are_rejected(oddlot: Oddlot) -> None:
    train = ("train", "digit_autoencoder", *FLAGS)
    oddlot.rejects("until_of_stages", *train, "--until", "epochs>=3")
    oddlot.rejects("until_of_stages", *train, "--epochs", "3")
    oddlot.rejects("setting_of_stages", *train, "--lr", "0.1")
    oddlot.rejects(
        "workload_has_stages",
        "plan",
        "digit_autoencoder",
        "--until",
        "accuracy>=0.9",
        "--machines",
        "fleet.toml",
    )
    oddlot.rejects("workload_has_stages", "profile", "digit_autoencoder")
    with raises(UsageError, "workload_has_stages", stages=["softmax"]):
        load_workload("digit_autoencoder", {"recipe": "paper", "pretrain_epochs": 0})
