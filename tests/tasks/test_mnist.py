"""MNIST and Fashion-MNIST from IDX files, which here hold a few pictures of our own."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from oddlot.core.errors import UsageError
from oddlot.tasks.mnist import fashion_mnist, mnist

CODES = {"u1": 0x08, ">i2": 0x0B}


def write(path: Path, array: NDArray[Any]) -> None:
    code = CODES[array.dtype.str.replace("|", "")]
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    path.write_bytes(header + array.tobytes())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve pictures to train on, five to test; each has its class as brightness."""
    for part, count in (("train", 12), ("t10k", 5)):
        labels = (np.arange(count) % 10).astype("u1")
        write(tmp_path / f"{part}-labels-idx1-ubyte", labels)
        images = np.repeat(labels, 28 * 28).reshape(count, 28, 28) * np.uint8(20)
        write(tmp_path / f"{part}-images-idx3-ubyte", images)
    return tmp_path


@pytest.mark.parametrize("task", [mnist, fashion_mnist])
def test_the_files_become_a_job(folder: Path, task: Any) -> None:
    job = task(data_dir=str(folder), hidden=5, batch=4)
    assert [part.shape for part in job.data] == [(12, 28, 28), (12,)]
    assert [part.shape for part in job.evaluation] == [(5, 28, 28), (5,)]
    images, classes = (torch.from_numpy(part) for part in job.data)
    assert classes.tolist() == [*range(10), 0, 1]
    model = job.model()
    assert model(images).shape == (12, 10)
    pixels = model[0](images)
    assert pixels.dtype == torch.float32
    assert pixels.mean().item() == pytest.approx(0, abs=1e-5)
    assert pixels.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    job.batch_loss(model, (images, classes)).backward()


def test_the_environment_says_where_the_files_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODDLOT_DATA", str(folder))
    assert len(mnist().data[0]) == 12


def test_missing_files_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ODDLOT_DATA", raising=False)
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UsageError, match=r"not here: t10k-labels-idx1-ubyte\[\.gz\] \(the others are in"):
        mnist(str(folder))
    with pytest.raises(
        UsageError, match=r"No folder was named to look in\. They come from https://github\.com/zal"
    ):
        fashion_mnist()


@pytest.mark.parametrize(
    ("name", "array", "sentence"),
    [
        (
            "train-images-idx3-ubyte",
            np.zeros((12, 8, 8), "u1"),
            r"hold shapes \(12, 8, 8\) uint8 and \(12,\) uint8",
        ),
        (
            "train-labels-idx1-ubyte",
            np.zeros(11, "u1"),
            r"hold shapes \(12, 28, 28\) uint8 and \(11,\) uint8",
        ),
        ("t10k-labels-idx1-ubyte", np.zeros(5, ">i2"), r"hold shapes \(5, 28, 28\) uint8 and \(5,\) int16"),
        ("t10k-labels-idx1-ubyte", np.full(5, 10, "u1"), r"class 10 is none of 0 to 9"),
    ],
)
def test_files_of_something_else_are_refused(
    folder: Path, name: str, array: NDArray[Any], sentence: str
) -> None:
    write(folder / name, array)
    with pytest.raises(UsageError, match=sentence):
        mnist(str(folder))
