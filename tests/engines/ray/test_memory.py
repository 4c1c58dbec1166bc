"""Test of a node of a Ray cluster that runs out of memory."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from benchmarks.ray.nodes import cluster
from oddlot.core.events import Lost
from tests.engines.ray.scenes import on_ray, scene, slow_job
from tests.transcripts import mask, warns

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


@dataclass
class Hungry:
    """A training step that allocates more memory than the node may use, once in one process."""

    flag: Path

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        with suppress(FileExistsError):
            self.flag.touch(exist_ok=False)
            memory = list[Tensor]()
            while len(memory) < 16:
                memory.append(torch.ones(100_000_000))
                time.sleep(0.1)
            time.sleep(60)
        time.sleep(0.05)
        return mse_loss(model(batch[0]), batch[1])


def test_worker_killed_by_rays_memory_monitor_warns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mask(node=r"\bw\d\b")
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line)
    used = total - 1024 * int(free.split()[1])
    monkeypatch.setenv(
        "RAY_memory_usage_threshold", f"{(used + 2e9) / total:.4f}"
    )  # two workers need about 1 GB
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    hungry = slow_job(training_step=Hungry(tmp_path / "flag"))
    with cluster(), scene(hungry, on_ray()) as run, warns("worker_out_of_memory"):
        run.until(lambda: any(isinstance(record.event, Lost) for record in run.records))
