"""Loading processes of a worker on Ray."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from benchmarks.ray.nodes import Nodes, cluster
from oddlot import Job, Synchronous
from oddlot.engines.local.orphans import wait_until_gone
from tests.engines.ray.scenes import on_ray
from tests.fits import distance, local, trained

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with cluster(workers=0) as made:
        yield made


class Noted(Dataset[Any]):
    """A dataset with random samples, which notes the processes that read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        import os

        (self.folder / f"{os.getppid()}-{os.getpid()}").touch()
        return torch.rand(3), index % 2


@pytest.mark.usefixtures("nodes")
def test_actor_loads_ahead_and_leaves_no_process(tmp_path: Path) -> None:
    def job(folder: Path, load_workers: int) -> Job:
        folder.mkdir()
        return Job(
            lambda: nn.Linear(3, 2),
            Noted(folder),
            nn.functional.cross_entropy,
            batch_size=4,
            device="cpu",
            load_workers=load_workers,
        )

    here, _ = trained(job(tmp_path / "here", 0), Synchronous(), local(1))
    ahead, _ = trained(job(tmp_path / "ahead", 2), Synchronous(), on_ray(1, in_flight=1))
    assert distance(here.model, ahead.model) == 0
    pairs = [tuple(map(int, path.name.split("-"))) for path in (tmp_path / "ahead").iterdir()]
    assert len({parent for parent, _ in pairs}) == 1
    assert len({pid for _, pid in pairs}) == 2
    pids = [pid for pair in pairs for pid in pair]
    assert wait_until_gone(pids, 60), {pid: _status(pid) for pid in pids}


def _status(pid: int) -> str:
    path = Path(f"/proc/{pid}/status")
    return path.read_text("utf-8") if path.exists() else "gone"
