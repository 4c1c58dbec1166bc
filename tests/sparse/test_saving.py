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


def test_saved_classifier_round_trips(tmp_path: Path) -> None:
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


def test_changed_setting_does_not_affect_the_saved_network(tmp_path: Path) -> None:
    SlideClassifier(hidden=8, epochs=1).fit(X, Y).set_params(hidden=5).save(tmp_path)
    assert SlideClassifier.load(tmp_path).hidden == 8


def test_load_and_save_reject_invalid_paths(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
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
def test_truncated_file_is_rejected(length: int, saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:length])
    with raises(ValueError, "damaged_file", path=str(saved)):
        SlideClassifier.load(saved.parent)


def test_file_with_a_changed_dtype_is_rejected(saved: Path) -> None:
    """A file with another dtype is rejected, although the size is the same."""
    saved.write_bytes(saved.read_bytes().replace(b'"F32"', b'"I32"'))
    with raises(ValueError, "wrong_checksum", path=str(saved)):
        SlideClassifier.load(saved.parent)


def test_flipped_bits_are_detected(saved: Path) -> None:
    """A flipped bit in the header, the settings or the weights is detected."""
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
def test_file_of_another_version_is_rejected(settings: str, code: str, reason: str, tmp_path: Path) -> None:
    """A file of another version is rejected despite a correct checksum."""
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
def test_full_disk_keeps_the_saved_file(
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


def test_leftover_file_of_a_killed_process_is_replaced(saved: Path) -> None:
    left = saved.with_name(f"{saved.name}.new")
    left.touch(0o600)
    mode = saved.stat().st_mode
    SlideClassifier.load(saved.parent).save(saved.parent)
    assert (saved.stat().st_mode, left.exists()) == (mode, False)


def test_numpy_settings_are_saved(tmp_path: Path) -> None:
    settings: Any = {"hidden": np.int64(8), "epochs": 1, "seed": np.int32(3), "lr": np.float32(0.01)}
    made = SlideClassifier(**settings).fit(X, Y)
    made.save(tmp_path)
    assert SlideClassifier.load(tmp_path).predict(X).tolist() == made.predict(X).tolist()
