"""Tests of arrays that the job's code writes to, on a Ray cluster."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import oddlot
from benchmarks.ray.nodes import cluster
from oddlot.engines.ray.object_chunks import MIN_MAPPED_BYTES, private
from tests.engines.ray.scenes import on_ray

BYTES = MIN_MAPPED_BYTES + 5_000


@pytest.mark.parametrize("start", [0, 4_160])
def test_mapped_array_is_copied_on_write(start: int, tmp_path: Path) -> None:
    file = tmp_path / "shared"
    np.arange(start + BYTES).astype(np.uint8).tofile(file)
    shared = np.memmap(file, np.uint8, "r+")[start:]
    mine, other = private(shared), private(shared)
    assert (mine == shared).all()
    shared[9] = 77
    assert mine[9] == 77, "pages that were not written are shared"
    mine[:] = 1
    assert shared[9] == 77
    assert (other == shared).all()


@pytest.mark.parametrize("size", [10, BYTES])
def test_unmappable_array_is_copied(size: int) -> None:
    shared = np.zeros(size, np.uint8)
    private(shared)[:] = 1
    assert not shared.any()


class Scratch(Dataset[tuple[Tensor, Tensor]]):
    """A dataset that writes to a scratch tensor and reads a file with a relative path."""

    def __init__(self, floats: int) -> None:
        self.scratch = torch.zeros(floats)

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        assert Path("rows.txt").read_text() == "rows"
        self.scratch[-1] = index
        return self.scratch[-1:].clone(), torch.tensor([index])


def check_rows(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return a loss without effect, after checking that rows and labels agree."""
    assert (batch[0] == batch[1]).all()
    loss: Tensor = model(batch[0]).sum() * 0
    return loss


@pytest.mark.ray
@pytest.mark.filterwarnings("default")
def test_worker_writes_do_not_change_the_hubs_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.txt").write_text("rows")
    with cluster():
        monkeypatch.chdir(tmp_path)
        data = Scratch(BYTES)
        job = oddlot.Job(lambda: nn.Linear(1, 1), data, training_step=check_rows, batch_size=4)
        run = oddlot.fit(job, oddlot.Synchronous(), on_ray((2, 2)), until="epochs>=2")
    assert run.summary["epochs"] == 2
    assert not data.scratch.any()
