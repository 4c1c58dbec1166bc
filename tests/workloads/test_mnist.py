"""Tests of the workloads `mnist` and `fashion_mnist`, with IDX files of a few images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from oddlot.core.support.errors import UsageError
from oddlot.workloads.mnist import fashion_mnist, mnist
from tests.transcripts import raises
from tests.workloads.formats.test_idx import written


def write(path: Path, array: NDArray[Any]) -> None:
    path.write_bytes(written(array, 0x08 if array.dtype == "u1" else 0x0B))


def write_few(folder: Path) -> Path:
    """Write twelve training and five test images, with the class as brightness. Return their folder."""
    for part, count in (("train", 12), ("t10k", 5)):
        labels = (np.arange(count) % 10).astype("u1")
        write(folder / f"{part}-labels-idx1-ubyte", labels)
        images = np.repeat(labels, 28 * 28).reshape(count, 28, 28) * np.uint8(20)
        write(folder / f"{part}-images-idx3-ubyte", images)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_few(tmp_path)


@pytest.mark.parametrize("task", [mnist, fashion_mnist])
def test_files_become_a_job(folder: Path, task: Any) -> None:
    job = task(data_dir=str(folder), hidden=5, batch_size=4)
    assert [part.shape for part in job.train_data] == [(12, 28, 28), (12,)]
    assert [part.shape for part in job.eval_data] == [(5, 28, 28), (5,)]
    images, classes = (torch.from_numpy(part) for part in job.train_data)
    assert classes.tolist() == [*range(10), 0, 1]
    model = job.model()
    assert model(images).shape == (12, 10)
    pixels = model[0](images)
    assert pixels.dtype == torch.float32
    assert pixels.mean().item() == pytest.approx(0, abs=1e-5)
    assert pixels.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    job.batch_loss(model, (images, classes)).backward()


def test_missing_files_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ODDLOT_DATA", raising=False)
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with raises(UsageError, "missing_data", dataset="mnist", files=["t10k-labels-idx1-ubyte"]):
        mnist(str(folder))
    with raises(UsageError, "missing_data", dataset="fashion_mnist", looked_in=[]):
        fashion_mnist()


@pytest.mark.parametrize(
    ("name", "array", "code", "fields"),
    [
        (
            "train-images-idx3-ubyte",
            np.zeros((12, 8, 8), "u1"),
            "wrong_shape",
            {"shapes": ((12, 8, 8), (12,))},
        ),
        ("train-labels-idx1-ubyte", np.zeros(11, "u1"), "wrong_shape", {"shapes": ((12, 28, 28), (11,))}),
        ("t10k-labels-idx1-ubyte", np.zeros(5, ">i2"), "wrong_shape", {"dtypes": ("uint8", "int16")}),
        ("t10k-labels-idx1-ubyte", np.full(5, 10, "u1"), "invalid_labels", {"given": 10}),
    ],
    ids=["images", "labels", "dtype", "class"],
)
def test_other_arrays_are_rejected(
    folder: Path, name: str, array: NDArray[Any], code: str, fields: dict[str, Any]
) -> None:
    write(folder / name, array)
    images = f"{name.partition('-')[0]}-images-idx3-ubyte"
    with raises(UsageError, code, path=str(folder / images), **fields):
        mnist(str(folder))


def test_files_without_pictures_are_rejected(folder: Path) -> None:
    write(folder / "t10k-images-idx3-ubyte", np.zeros((0, 28, 28), "u1"))
    write(folder / "t10k-labels-idx1-ubyte", np.zeros(0, "u1"))
    with raises(UsageError, "no_pictures", path=str(folder / "t10k-images-idx3-ubyte")):
        mnist(str(folder))
