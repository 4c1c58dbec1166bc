"""Tests of the workload `cifar10`: formats, search for data, checks, and the job."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oddlot.core.support.errors import UsageError
from oddlot.workloads.cifar10 import cifar10, find
from oddlot.workloads.formats.cifar_pickle import ARCHIVE, FOLDER, PARTS
from oddlot.workloads.formats.decoded_cache import cached
from tests.command import Oddlot
from tests.transcripts import raises, transcribe
from tests.workloads.small_cifar import archive, batches, encoded, photos, picture, tree


def archives(folder: Path) -> list[Path]:
    """Write one archive for each split."""
    return [
        archive(folder / f"cifar10-{split}.tar.xz", {n: c for n, c in photos() if n.startswith(split)})
        for split in ("train", "test")
    ]


FORMS: dict[str, Callable[[Path], Path]] = {
    "python archive": lambda folder: archive(folder / ARCHIVE, batches()),
    "python folder": lambda folder: tree(folder, batches()),
    "tar": lambda folder: archive(folder / "cifar10.tar", dict(photos())),
    "tar.gz": lambda folder: archive(folder / "cifar10-pictures.tar.gz", dict(photos())),
    "an archive a split": lambda folder: archives(folder)[0],
    "folders": lambda folder: tree(folder, dict(photos())),
}


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a cache in the test's folder, and no data from the environment."""
    monkeypatch.setenv("ODDLOT_CACHE", str(tmp_path / "cache"))
    if os.environ.get("ODDLOT_DATA"):
        monkeypatch.setenv("REAL_DATA", os.environ["ODDLOT_DATA"])
    monkeypatch.delenv("ODDLOT_DATA", raising=False)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("below", [".", "cifar10", "cifar10_jpeg"])
def test_every_format_gives_the_same_job(tmp_path: Path, form: str, below: str) -> None:
    folder = tmp_path / "data" / below
    folder.mkdir(parents=True)
    FORMS[form](folder)
    job = cifar10(data_dir=str(tmp_path / "data"), batch_size=4)
    images, labels = job.train_data
    assert (images.shape, images.dtype, labels.dtype) == ((20, 3, 32, 32), np.uint8, np.int64)
    # The order of the published files is kept. Single images are sorted by class and name.
    in_turn = form.startswith("python")
    expected = [(i % 10, i // 10) if in_turn else (i // 2, i % 2) for i in range(20)]
    assert labels.tolist() == [label for label, _ in expected]
    for image, (label, number) in zip(images, expected, strict=True):
        np.testing.assert_array_equal(image, picture(label, number).transpose(2, 0, 1))
    assert job.eval_data[1].tolist() == list(range(10))
    assert isinstance(images, np.memmap)
    assert Path(str(images.filename)).parent.parent == tmp_path / "cache"


@pytest.mark.parametrize("model", ["small", "resnet20"])
def test_job_trains_every_parameter(tmp_path: Path, model: str) -> None:
    tree(tmp_path, batches())
    job = cifar10(str(tmp_path), model, batch_size=4)
    images, labels = (torch.from_numpy(np.array(part)) for part in job.train_data)
    network = job.model()
    scaled = network[0](images)  # type: ignore[index]  # the first layer
    assert scaled.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-5)
    assert scaled.std((0, 2, 3), correction=0).tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    job.batch_loss(network, (images, labels)).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    changed = [not torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True)]
    assert all(changed)


def test_unknown_model_is_rejected(tmp_path: Path) -> None:
    with raises(UsageError, "unknown_name", given="resnet", nearest="resnet20") as rejection:
        cifar10(str(tmp_path), "resnet")
    assert rejection.value.key == "model"


def test_missing_data_names_the_searched_folders(tmp_path: Path) -> None:
    looked = [str(folder) for folder in (tmp_path / "cifar10", tmp_path / "cifar10_jpeg", tmp_path)]
    for folder, looked_in in ((str(tmp_path), looked), ("", [])):
        with raises(UsageError, "missing_data", dataset="cifar10", looked_in=looked_in):
            cifar10(folder)


@pytest.mark.parametrize("form", [archive, tree])
def test_missing_split_or_class_raises(tmp_path: Path, form: Any) -> None:
    for name, left_out, code, fields in (
        ("a", r"test/", "no_pictures", {"split": "test"}),
        ("b", r".*/deer/", "missing_classes", {"split": "train", "classes": ["deer"]}),
        ("c", r"test/frog/", "missing_classes", {"split": "test", "classes": ["frog"]}),
    ):
        (folder := tmp_path / name).mkdir()
        contents = {name: content for name, content in photos() if not re.match(left_out, name)}
        form(folder / "cifar10.tar" if form is archive else folder, contents)
        with raises(UsageError, code, path=str(folder), **fields):
            cifar10(str(folder))


def test_missing_batch_raises(tmp_path: Path) -> None:
    """A missing batch, or a batch without some classes, is reported."""
    few = batches()
    few[f"{FOLDER}/test_batch"] = few[f"{FOLDER}/data_batch_1"]
    tree(tmp_path / "few", few)
    classes = ["deer", "dog", "frog", "horse", "ship", "truck"]
    with raises(UsageError, "missing_classes", split="test", classes=classes):
        cifar10(str(tmp_path / "few"))
    path = tree(tmp_path / "folder", batches()) / FOLDER / "data_batch_3"
    path.unlink()
    with raises(UsageError, "unreadable_file", path=str(path)):
        cifar10(str(tmp_path / "folder"))
    del few[f"{FOLDER}/test_batch"]
    (tmp_path / "packed").mkdir()
    path = archive(tmp_path / "packed" / ARCHIVE, few)
    with raises(UsageError, "missing_file", path=str(path), member="test_batch"):
        cifar10(str(tmp_path / "packed"))


def test_data_is_found_in_all_locations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data are found in $ODDLOT_DATA and in the unpacked folder itself. Lossless formats come first."""
    monkeypatch.setenv("ODDLOT_DATA", str(tree(tmp_path, batches())))
    archive(tmp_path / "cifar10.tar", {})
    assert len(cifar10().train_data[0]) == 20
    assert find(tmp_path / FOLDER).files == find(tmp_path).files
    assert [file.name for file in find(tmp_path).files] == [name for part in PARTS.values() for name in part]
    monkeypatch.chdir(tmp_path / FOLDER)
    assert len(cifar10(".").train_data[0]) == 20


def test_changed_files_are_decoded_again(tmp_path: Path) -> None:
    path = tree(tmp_path, dict(photos())) / "train" / "cat" / "0000.png"
    assert cifar10(str(tmp_path)).train_data[0][6, 2, 0, 0] == 60
    path.write_bytes(encoded(picture(3, 9)))
    assert cifar10(str(tmp_path)).train_data[0][6, 2, 0, 0] == 69
    (path.parent / "0002.png").write_bytes(encoded(picture(3, 2)))
    assert len(cifar10(str(tmp_path)).train_data[0]) == 21


def test_cli_trains_and_reports_decoding(
    oddlot: Oddlot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, dict(photos()))
    words = ("--data", str(tmp_path), "--set", "job.batch_size=10")
    answer = oddlot(
        "train", "cifar10", "--until", "epochs>=1", "--workers", "1", "--set", "engine.threads=1", *words
    )
    assert answer.code == 0, answer.err
    cache = str(tmp_path / "cache")
    (message,) = (line for line in answer.out.splitlines() if cache in line)
    transcribe(message, state="(?<=/cifar10-)[0-9a-f]{20}")
    simulate = ("simulate", "cifar10", "--machines", "fleet.toml", *words, "--until")
    again = oddlot(*simulate, "epochs>=1")
    assert again.code == 0, again.err
    assert cache not in again.out + again.err
    monkeypatch.setenv("ODDLOT_CACHE", str(tmp_path / "other"))
    quiet = oddlot(*simulate, "versions>=1", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


def test_published_pictures_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published means are 125.3, 123.0 and 113.9. JPEG compression changes them by less than 1."""
    if not (place := os.environ.get("REAL_DATA")):
        pytest.skip("ODDLOT_DATA names no folder with the real pictures")
    monkeypatch.setenv("ODDLOT_DATA", place)
    try:
        found = find()
    except UsageError as error:
        pytest.skip(str(error))
    splits = cached("cifar10", found.files, found.read)
    for split, each in (("train", 5000), ("test", 1000)):
        images, labels = splits[split]
        assert images.shape == (10 * each, 3, 32, 32)
        assert np.bincount(labels).tolist() == [each] * 10
    assert splits["train"][0].mean((0, 2, 3)).tolist() == pytest.approx([125.3, 123.0, 113.9], abs=1)
