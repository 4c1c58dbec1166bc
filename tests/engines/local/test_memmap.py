"""Pickling of memory-mapped arrays for workers: by the path of the file if it has the same values, else as copies."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset, random_split

import oddlot
from oddlot import JobError, Synchronous
from oddlot.engines.local.orphans import MEMORY_NAME
from oddlot.engines.local.shared_memory import open_parcel, pack_parcel
from oddlot.train.job import Job
from tests.fits import a_job, local, net, rows, trained
from tests.transcripts import raises

pytestmark = pytest.mark.usefixtures("fork_server")

HUB = os.getpid()
MAPS = Path("/proc/self/maps")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", np.arange(100_000).reshape(500, 200))
    return tmp_path / "a.npy"


def sent(value: Any) -> tuple[Any, int]:
    """Return the value that a worker gets, and the size of its parcel in bytes."""
    parcel = pack_parcel(value)
    try:
        return open_parcel(parcel), os.fstat(parcel).st_size
    finally:
        os.close(parcel)


@pytest.mark.parametrize(("mode", "theirs"), [("r", "r"), ("r+", "c")])
def test_mapped_file_is_sent_as_its_path(path: Path, mode: Any, theirs: str) -> None:
    array = np.load(path, mmap_mode=mode)
    back, size = sent({"deep": [array]})
    (there,) = back["deep"]
    assert size < 2_000
    assert (there.filename, there.mode, there.offset) == (str(path), theirs, array.offset)
    np.testing.assert_array_equal(there, array)
    if mode == "r+":
        array[0, 0] = 7  # visible to the worker, because it opens the file later
        again, _ = sent(array)
        again[0, 1] = 8  # a write of the worker is not visible here
        assert (again[0, 0], array[0, 1]) == (7, 1)


def test_raw_and_fortran_files_are_sent_as_their_path(tmp_path: Path) -> None:
    columns = np.memmap(tmp_path / "raw", np.float32, "w+", offset=64, shape=(100, 30), order="F")
    columns[:] = np.arange(3000).reshape(100, 30)
    back, size = sent(columns)
    assert size < 2_000
    assert back.flags.f_contiguous
    np.testing.assert_array_equal(back, columns)


@pytest.mark.parametrize(
    "part",
    [lambda a: a[10:], lambda a: a[:, ::2], lambda a: a.T, lambda a: a.reshape(-1), lambda a: a[:]],
    ids=["rows", "columns", "turned", "flat", "all"],
)
def test_slice_of_a_mapped_file_is_sent_by_value(path: Path, part: Any) -> None:
    array = part(np.load(path, mmap_mode="r"))
    back, size = sent(array)
    assert size >= array.nbytes
    assert type(back) is np.ndarray
    np.testing.assert_array_equal(back, array)


def test_copy_on_write_array_is_sent_by_value(path: Path) -> None:
    array = np.load(path, mmap_mode="c")
    array[3, 3] = -1
    assert sent(array)[0][3, 3] == -1


@pytest.mark.parametrize("change", [Path.unlink, lambda path: os.truncate(path, 1000)], ids=["gone", "cut"])
def test_mapped_array_without_its_file_is_sent_by_value(tmp_path: Path, change: Any) -> None:
    np.save(tmp_path / "a.npy", np.arange(200))  # fits into a page, so it stays mapped when the file is cut
    array = np.load(tmp_path / "a.npy", mmap_mode="r")
    change(tmp_path / "a.npy")
    back, _ = sent(array)
    assert type(back) is np.ndarray
    assert back[:100].tolist() == list(range(100))


@pytest.mark.parametrize(
    ("change", "size"),
    [
        (Path.unlink, None),
        (lambda path: os.truncate(path, 1000), 1000),
        (lambda path: os.truncate(path, 900_000), 900_000),
    ],
    ids=["gone", "shorter", "longer"],
)
def test_file_changed_before_a_worker_opens_it_raises(path: Path, change: Any, size: int | None) -> None:
    parcel = pack_parcel(np.load(path, mmap_mode="r"))
    change(path)
    with raises(JobError, "data_file_changed", path=str(path), bytes=size, expected=800_128):
        open_parcel(parcel)
    os.close(parcel)


TENSORS: list[Tensor] = [
    torch.arange(50_000, dtype=torch.float32).view(100, 500),
    torch.arange(50_000).to(torch.bfloat16),
    torch.arange(100_000, dtype=torch.int32).view(200, 500)[:, ::2],
    torch.ones(50_000, requires_grad=True),
    torch.ones(50_000) > 0,
    torch.tensor(3.0),
    torch.eye(300).to_sparse(),
    torch.ones(1).expand(1 << 30),
    torch.tensor([1j]).conj(),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype} {tensor.layout}")
def test_tensor_inside_a_dataset_is_restored(tensor: Tensor) -> None:
    (back, again), size = sent([tensor, tensor])
    assert size < 1_000_000, "what expand() makes travels as its one number"
    assert back is again
    assert (back.dtype, back.layout, back.requires_grad) == (
        tensor.dtype,
        tensor.layout,
        tensor.requires_grad,
    )
    assert torch.equal(
        *(one.to_dense() if one.is_sparse or not one.ndim else one[:9] for one in (back, tensor))
    )


def test_tensors_inside_datasets_share_memory() -> None:
    """Tensors inside datasets are mapped, and not copied into a worker's private memory."""
    tensor = torch.arange(50_000, dtype=torch.float32)
    parts = random_split(TensorDataset(tensor), [0.5, 0.5], torch.Generator().manual_seed(0))
    parcel = pack_parcel(Subset(parts[0], range(10)))
    back = open_parcel(parcel).dataset.dataset.tensors[0]
    os.close(parcel)
    spans = [
        line.split()[0].split("-") for line in MAPS.read_text().splitlines() if f"memfd:{MEMORY_NAME}" in line
    ]
    assert any(int(start, 16) <= back.data_ptr() < int(end, 16) for start, end in spans)


def mapped_job(folder: Path) -> Job:
    parts = []
    for name, part in zip(("x", "y"), rows(), strict=True):
        np.save(folder / f"{name}.npy", part.numpy())
        parts.append(np.load(folder / f"{name}.npy", mmap_mode="r"))
    return a_job(train_data=tuple(parts))


def test_mapped_data_trains_like_arrays(tmp_path: Path) -> None:
    runs = [trained(job, Synchronous(), local(1))[0] for job in (a_job(), mapped_job(tmp_path))]
    states = [run.model.state_dict() for run in runs]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_data_file_deleted_before_a_respawn_ends_the_run(tmp_path: Path) -> None:
    job, path = mapped_job(tmp_path), tmp_path / "x.npy"

    def model() -> nn.Module:
        if os.getpid() != HUB:  # a worker that has opened the file
            path.unlink(missing_ok=True)
            os._exit(1)
        return net()

    job.model = model
    with raises(JobError, "data_file_changed", path=str(path), bytes=None):
        oddlot.fit(job, Synchronous(), local(1), until="epochs>=2")
