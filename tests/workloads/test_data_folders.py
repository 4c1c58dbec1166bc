"""Tests of the search for the data of built-in workloads, and of the errors for a wrong folder."""

from pathlib import Path
from typing import Any

import pytest

from oddlot.core.support.errors import UsageError
from oddlot.workloads import load_workload
from tests.transcripts import raises

MNIST = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]


@pytest.mark.parametrize("task", ["mnist", "cifar10", "xmc", "char_lm"])
@pytest.mark.parametrize(("name", "code"), [("absent", "missing_folder"), ("a_file", "not_a_folder")])
def test_invalid_data_dir_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, name: str, code: str
) -> None:
    """An invalid `data_dir` is an error, even if $ODDLOT_DATA has the data."""
    monkeypatch.setenv("ODDLOT_DATA", str(tmp_path))
    for file in (*MNIST, "train.txt", "test.txt", "cifar-10-python.tar.gz", "a_file"):
        (tmp_path / file).touch()
    with raises(UsageError, code, path=str(tmp_path / name)) as rejection:
        load_workload(task, {"data_dir": str(tmp_path / name)})
    assert rejection.value.key == "data_dir"


@pytest.mark.parametrize(
    ("task", "files", "there", "other_names"),
    [
        (
            "mnist",
            ["train-images.idx3-ubyte", "Train_Labels_idx1_ubyte.gz", "notes"],
            ["Train_Labels_idx1_ubyte.gz", "notes", "train-images.idx3-ubyte"],
            {MNIST[0]: "train-images.idx3-ubyte", f"{MNIST[1]}.gz": "Train_Labels_idx1_ubyte.gz"},
        ),
        ("mnist", list("abcdefg"), list("abcde"), {}),
        ("cifar10", ["cifar-10-python.tar.gz.part"], ["cifar-10-python.tar.gz.part"], None),
        ("xmc", ["Train.txt"], ["Train.txt"], {"train.txt": "Train.txt"}),
    ],
    ids=["renamed", "many", "cifar10", "xmc"],
)
def test_files_in_the_wrong_folder_are_named(
    tmp_path: Path, task: str, files: list[str], there: list[str], other_names: Any
) -> None:
    for file in files:
        (tmp_path / file).touch()
    with pytest.raises(UsageError) as rejection:
        load_workload(task, {"data_dir": str(tmp_path)})
    fields = rejection.value.fields
    assert fields["there"] == there
    assert other_names is None or fields["other_names"] == other_names
