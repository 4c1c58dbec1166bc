"""Saving and loading of classifiers, and errors for invalid files."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from oddlot.sparse import SlideClassifier, Uniform, saving
from oddlot.sparse.datasets.generating import Shape, generate
from tests.transcripts import raises

pytestmark = pytest.mark.usefixtures("one_thread")

X, Y = generate(200, Shape(80, 40, 20.0, 2.0))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return the file of a saved classifier."""
    SlideClassifier(hidden=4, epochs=1).fit(X, Y).save(tmp_path)
    return tmp_path / "classifier.safetensors"


def test_it_comes_back_from_its_file(tmp_path: Path) -> None:
    """The settings are restored, and the file has the default permissions."""
    made = SlideClassifier(Uniform(5), hidden=8, epochs=2).fit(X, Y)
    made.save(tmp_path / "model")
    again = SlideClassifier.load(tmp_path / "model", Uniform(5))
    assert again.predict_topk(X).tolist() == made.predict_topk(X).tolist()
    assert again.get_params() | {"sampler": None} == made.get_params() | {"sampler": None}
    assert (again.n_labels_, again.labels, again.history) == (40, None, made.history)
    assert len(again.partial_fit(X, Y).history) == 3
    (tmp_path / "other").touch()
    (file,) = (tmp_path / "model").iterdir()
    assert file.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_setting_for_the_next_fit_is_not_the_network_s(tmp_path: Path) -> None:
    SlideClassifier(hidden=8, epochs=1).fit(X, Y).set_params(hidden=5).save(tmp_path)
    assert SlideClassifier.load(tmp_path).hidden == 8


def test_places_without_a_classifier(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    for place in (other, other / "none"):
        with raises(FileNotFoundError, "missing_file", path=str(place / saving.FILE)):
            SlideClassifier.load(place)
    save_file({"weight": torch.zeros(1)}, other / saving.FILE)
    with raises(FileNotFoundError, "other_format", path=str(other / saving.FILE)):
        SlideClassifier.load(other)
    with raises(FileNotFoundError, "not_a_folder", path=str(saved)):
        SlideClassifier.load(saved)
    with raises(NotADirectoryError, "not_a_folder", path=str(saved)):
        SlideClassifier.load(saved.parent).save(saved)
    with raises(ValueError, "invalid_value", name="folder", given=""):
        SlideClassifier.load(saved.parent).save("")


@pytest.mark.parametrize("length", [0, 20, -1])
def test_a_file_that_ends_early(length: int, saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:length])
    with raises(ValueError, "damaged_file", path=str(saved)):
        SlideClassifier.load(saved.parent)


def test_numbers_that_are_taken_for_others(saved: Path) -> None:
    """The other dtype has the same size."""
    saved.write_bytes(saved.read_bytes().replace(b'"F32"', b'"I32"'))
    with raises(ValueError, "wrong_checksum", path=str(saved)):
        SlideClassifier.load(saved.parent)


def test_a_bit_that_has_changed_anywhere(saved: Path) -> None:
    """The bit may be in the header, the settings or the weights."""
    data, codes = saved.read_bytes(), set[str]()
    for place in range(0, len(data), 37):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        saved.write_bytes(changed)
        with pytest.raises(ValueError, match=re.escape(str(saved))) as caught:
            SlideClassifier.load(saved.parent)
        codes.add(vars(caught.value)["code"])
    assert codes == {"damaged_file", "wrong_checksum"}


@pytest.mark.parametrize(
    ("settings", "code", "reason"),
    [
        ("{", "damaged_file", "Expecting"),
        ("{}", "other_version", "settings"),
        ("[]", "other_version", ""),
        ("3", "other_version", ""),
        ('{"settings": {"depth": 3}, "sizes": {}}', "other_version", "unexpected keyword argument 'depth'"),
        ('{"settings": {}, "sizes": {"features": 3}}', "other_version", "argument: 'labels'"),
        ('{"settings": {}, "sizes": {"features": 3, "labels": 2}}', "other_version", "Missing key"),
    ],
    ids=["cut", "empty", "list", "number", "setting", "size", "weights"],
)
def test_a_classifier_of_another_version(settings: str, code: str, reason: str, tmp_path: Path) -> None:
    """The checksum is correct."""
    weights = {"weight": torch.zeros(1)}
    header = {"settings": settings, "sha256": saving._checksum(settings, weights)}
    save_file(weights, tmp_path / saving.FILE, header)
    with raises(ValueError, code) as caught:
        SlideClassifier.load(tmp_path)
    assert reason in caught.fields["reason"], "which Python or PyTorch says"


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), SafetensorError("No space left on device")],
    ids=lambda error: type(error).__name__,
)
def test_a_disk_that_is_full_leaves_what_was_saved(
    error: Exception, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise error

    before = saved.read_bytes()
    monkeypatch.setattr("safetensors.torch.save_file", full)
    # the message names this file, not the temporary one
    with raises(OSError, "unwritable_file", path=str(saved), reason="No space left on device"):
        SlideClassifier.load(saved.parent).save(saved.parent)
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    assert saved.read_bytes() == before


def test_what_a_killed_process_left_behind_is_in_nobody_s_way(saved: Path) -> None:
    left = saved.with_name(f"{saved.name}.new")
    left.touch(0o600)
    mode = saved.stat().st_mode
    SlideClassifier.load(saved.parent).save(saved.parent)
    assert (saved.stat().st_mode, left.exists()) == (mode, False)


def test_numbers_of_numpy_are_saved_too(tmp_path: Path) -> None:
    settings: Any = {"hidden": np.int64(8), "epochs": 1, "seed": np.int32(3), "lr": np.float32(0.01)}
    made = SlideClassifier(**settings).fit(X, Y)
    made.save(tmp_path)
    assert SlideClassifier.load(tmp_path).predict(X).tolist() == made.predict(X).tolist()
