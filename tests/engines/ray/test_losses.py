"""Every way in which a worker or a node of a Ray cluster can be lost."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from benchmarks.ray.nodes import Nodes, cluster, drain
from oddlot import JobError
from oddlot.core.events import Joined, Leaving, Lost
from oddlot.history.run_folder import RunFolder
from tests.engines.ray.scenes import LOST_AFTER_SECONDS, on_ray, scene, slow_job
from tests.transcripts import mask, raises, warns

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with cluster() as made:
        yield made


@pytest.mark.usefixtures("nodes")
def test_a_killed_worker_is_noticed_within_a_second_and_replaced() -> None:
    with scene(slow_job(), on_ray()) as run:
        run.work()
        run.faults.kill("w1")
        assert run.seconds_until_lost("w1") <= 1
        run.until(lambda: run.has(Joined, "w1.2"))
        run.finish()


@pytest.mark.usefixtures("nodes")
def test_a_frozen_worker_is_replaced() -> None:
    with scene(slow_job(), on_ray()) as run:
        run.work()
        started = run.actors.running["w1"].started
        assert started
        run.faults.freeze("w1")
        assert run.seconds_until_lost("w1") <= LOST_AFTER_SECONDS + 1
        run.until(lambda: run.has(Joined, "w1.2"))
        run.finish()
        assert not Path(f"/proc/{started.pid}").exists(), (
            "a frozen process must not keep its node's resources"
        )


@pytest.fixture
def more() -> Iterator[Nodes]:
    """A cluster for one test, which loses a node of it."""
    with cluster(workers=2) as made:
        yield made


def test_a_node_whose_raylet_is_killed(more: Nodes) -> None:
    nodes, added = more, more.alive[0]
    with scene(slow_job(0.2), on_ray(3, num_cpus=1)) as run:
        run.until(lambda: len(run.on_node(added.node_id)) > 0 and len(run.host.conductor.slots) == 3)
        lost = run.on_node(added.node_id)
        os.kill(nodes.raylet(added), signal.SIGKILL)
        for node in lost:
            assert run.seconds_until_lost(node) <= LOST_AFTER_SECONDS + 1
            run.until(lambda node=node: run.has(Joined, f"{node}.2"))  # type: ignore[misc]  # elsewhere, at once
        run.finish()


def test_a_frozen_node(more: Nodes) -> None:
    nodes, added = more, more.alive[0]
    with scene(slow_job(0.2), on_ray(3, num_cpus=1)) as run:
        run.until(lambda: len(run.on_node(added.node_id)) > 0 and len(run.host.conductor.slots) == 3)
        lost = run.on_node(added.node_id)
        nodes.send(added, signal.SIGSTOP)
        for node in lost:
            assert run.seconds_until_lost(node) <= LOST_AFTER_SECONDS + 1
            run.until(lambda node=node: run.has(Joined, f"{node}.2"))  # type: ignore[misc]  # elsewhere, at once
        run.finish()


def test_workers_of_a_drained_node_hand_over_and_leave(more: Nodes) -> None:
    added = more.alive[0]
    with scene(slow_job(0.2), on_ray(3, num_cpus=1)) as run:
        run.until(lambda: len(run.on_node(added.node_id)) > 0 and len(run.host.conductor.slots) == 3)
        leaving = run.on_node(added.node_id)
        drain(added.node_id, seconds=60)
        for node in leaving:
            run.until(lambda node=node: run.has(Leaving, node))  # type: ignore[misc]
            run.seconds_until_lost(node)
            run.until(lambda node=node: run.has(Joined, f"{node}.2"))  # type: ignore[misc]
        run.finish()
        assert not run.on_node(added.node_id), "a drained node gets no workers"


class Broken:
    """A loss that raises."""

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        sys.stderr.write("what the worker said before\n")
        raise ArithmeticError("my own mistake")


@pytest.mark.usefixtures("nodes")
def test_an_exception_of_the_users_ends_the_run_with_its_traceback_and_the_workers_output(
    tmp_path: Path,
) -> None:
    mask(node=r"\bw\d\b", rows=r"train_data\[[\d, ]+\]")
    (tmp_path / "run").mkdir()
    failing = scene(slow_job(training_step=Broken()), on_ray(), RunFolder(tmp_path / "run"))
    with failing as run, raises(JobError, "user_code_failed") as caught:
        run.finish()
    assert "ArithmeticError: my own mistake" in caught.fields["reason"]
    (log,) = (tmp_path / "run" / "workers").iterdir()
    assert "what the worker said before" in log.read_text()


class Deadly:
    """A training step that kills its process at one row."""

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if (batch[0] == 0).any():
            os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(10)
        return mse_loss(model(batch[0]), batch[1])


@pytest.mark.usefixtures("nodes")
def test_a_row_that_kills_three_workers_is_named() -> None:
    with scene(slow_job(training_step=Deadly()), on_ray()) as run, raises(JobError, "bad_samples"):
        run.finish()


@dataclass
class Hungry:
    """A training step that once, in one process, takes more memory than the node may use."""

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


def test_a_worker_that_ray_kills_for_want_of_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
