"""Tests of lost workers on a Ray cluster: killed, frozen, crashed or silent."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from benchmarks.ray.nodes import Nodes, cluster
from oddlot import JobError
from oddlot.core.events import Joined, Lost
from oddlot.engines.ray import losses
from oddlot.history.run_folder import RunFolder
from tests.engines.ray.scenes import BATCH, LOST_AFTER_SECONDS, on_ray, scene, slow_job
from tests.transcripts import mask, raises

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with cluster() as made:
        yield made


@pytest.mark.usefixtures("nodes")
def test_killed_worker_is_detected_within_a_second_and_replaced() -> None:
    with scene(slow_job(0.2), on_ray()) as run:
        run.until(lambda: len(run.host.conductor.slots) == 2)
        run.work()
        run.faults.kill("w1")
        assert run.seconds_until_lost("w1") <= 1
        run.until(lambda: run.has(Joined, "w1.2"))
        run.finish()


@pytest.mark.usefixtures("nodes")
def test_frozen_worker_is_replaced() -> None:
    with scene(slow_job(0.2), on_ray()) as run:
        run.until(lambda: len(run.host.conductor.slots) == 2)
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


class Broken:
    """A training step that raises an exception."""

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        sys.stderr.write("what the worker said before\n")
        raise ArithmeticError("my own mistake")


@pytest.mark.usefixtures("nodes")
def test_user_exception_ends_the_run_with_traceback_and_output(
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


class Holding:
    """A training step that holds Python's GIL at one row for longer than `lost_after_seconds`."""

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if (batch[0] == 0).any():
            ctypes.PyDLL(None).sleep(60)
        return mse_loss(model(batch[0]), batch[1])


@pytest.mark.usefixtures("nodes")
def test_sample_that_silences_three_workers_is_named() -> None:
    with scene(slow_job(training_step=Holding()), on_ray()) as run, raises(JobError, "bad_samples") as caught:
        run.finish()
    assert "lost_after_seconds" in str(caught.value)


@pytest.mark.usefixtures("nodes")
def test_sample_that_kills_three_workers_is_named() -> None:
    with scene(slow_job(training_step=Deadly()), on_ray()) as run, raises(JobError, "bad_samples"):
        run.finish()


class Exiting:
    """A training step that ends its process with `os._exit` at one row."""

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if (batch[0] == 0).any():
            os._exit(3)
        return mse_loss(model(batch[0]), batch[1])


@pytest.mark.usefixtures("nodes")
def test_sample_that_kills_workers_of_another_machine_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "host", lambda: "another machine than the workers'")
    on = on_ray(in_flight=1, lost_after_seconds=60.0)
    with scene(slow_job(training_step=Exiting()), on, skip_bad=True) as run:
        run.finish()
        assert run.host.conductor.ledger.skipped == BATCH
        causes = [record.event.cause for record in run.records if isinstance(record.event, Lost)]
        assert causes == 3 * ["exit code 3"]
