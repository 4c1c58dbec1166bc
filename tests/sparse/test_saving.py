"""A classifier comes back from its file, or a sentence says why not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from oddlot.sparse import SlideClassifier, Uniform, saving
from oddlot.sparse.xmc.generating import Shape, generate

X, Y = generate(200, Shape(80, 40, 20.0, 2.0))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The file of a classifier."""
    SlideClassifier(hidden=4, epochs=1).fit(X, Y).save(tmp_path)
    return tmp_path / "classifier.safetensors"


def test_it_comes_back_from_its_file(tmp_path: Path) -> None:
    """With the settings that it was made with, in a file that others may read as they may read any."""
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


def test_a_folder_without_a_classifier(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileNotFoundError, match=r"has no classifier\.safetensors: it is no folder of a"):
            SlideClassifier.load(place)


def test_the_file_in_place_of_its_folder(saved: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"safetensors is a file: the folder that it is in is expected"
    ):
        SlideClassifier.load(saved)


def test_a_file_in_place_of_the_folder_to_save_in(saved: Path) -> None:
    with pytest.raises(NotADirectoryError, match=r"safetensors is a file: a folder is expected"):
        SlideClassifier.load(saved.parent).save(saved)


@pytest.mark.parametrize("length", [0, 20, -1])
def test_a_file_that_ends_early(length: int, saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"classifier\.safetensors is damaged"):
        SlideClassifier.load(saved.parent)


def test_numbers_that_are_taken_for_others(saved: Path) -> None:
    """Of as many bytes."""
    saved.write_bytes(saved.read_bytes().replace(b'"F32"', b'"I32"'))
    with pytest.raises(ValueError, match="is damaged: it has not the checksum"):
        SlideClassifier.load(saved.parent)


def test_a_bit_that_has_changed_anywhere(saved: Path) -> None:
    """In the header, the settings or the weights."""
    data = saved.read_bytes()
    for place in range(0, len(data), 37):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        saved.write_bytes(changed)
        with pytest.raises(ValueError, match=r"classifier\.safetensors is damaged"):
            SlideClassifier.load(saved.parent)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("{", "is damaged"),
        ("{}", "cannot be read, of another version: 'settings'"),
        ("[]", "cannot be read, of another version"),
        ("3", "cannot be read, of another version"),
        ('{"settings": {"depth": 3}, "sizes": {}}', "another version: .*unexpected keyword argument 'depth'"),
        ('{"settings": {}, "sizes": {"features": 3}}', "another version: .*missing 1 required .*'labels'"),
        ('{"settings": {}, "sizes": {"features": 3, "labels": 2}}', "another version: .*Missing key"),
    ],
)
def test_a_classifier_of_another_version(settings: str, told: str, tmp_path: Path) -> None:
    """Whose checksum is right."""
    weights = {"weight": torch.zeros(1)}
    header = {"settings": settings, "sha256": saving._checksum(settings, weights)}
    save_file(weights, tmp_path / saving.FILE, header)
    with pytest.raises(ValueError, match=f"(?s){told}"):
        SlideClassifier.load(tmp_path)


def test_a_model_that_is_no_classifier_s(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(1)}, tmp_path / saving.FILE)
    with pytest.raises(FileNotFoundError, match="is another one's: it is no file of a saved classifier"):
        SlideClassifier.load(tmp_path)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), SafetensorError("No space left on device")]
)
def test_a_disk_that_is_full_leaves_what_was_saved(
    error: Exception, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise error

    before = saved.read_bytes()
    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space left") as told:
        SlideClassifier.load(saved.parent).save(saved.parent)
    assert str(saved) in str(told.value), "and not only the file that is written first"
    assert f"{saved.name}.new" not in str(told.value)
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    assert saved.read_bytes() == before


def test_a_folder_without_a_name(saved: Path) -> None:
    with pytest.raises(ValueError, match="the name of a folder is expected"):
        SlideClassifier.load(saved.parent).save("")


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
