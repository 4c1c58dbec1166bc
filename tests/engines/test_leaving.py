"""Tests of preemptions with notice: workers send finished parts of tasks, and no sample is computed twice."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from oddlot import Asynchronous, LocalSGD, Machine, Simulated, Strategy, Synchronous
from oddlot.core.commands import Step
from oddlot.core.events import Arrived, Cancelled, Leaving, Lost
from oddlot.core.records import Record
from oddlot.core.sample_spans import Span
from oddlot.machines import Lifetime, Link
from oddlot.run.config import RunConfig
from oddlot.run.recipe import Recipe
from oddlot.run.result import Run
from oddlot.run.training import prepared
from oddlot.testing.engine_check import DrivenRun
from tests.engines.log import events, names, times, updates
from tests.fits import BATCH, SAMPLES, Place, a_job, distance, local, merges, plain_loop, trained

pytestmark = pytest.mark.usefixtures("fork_server")


FOREVER = Lifetime(1e9)
ONE = Simulated([Machine("m", 0.01, lifetime=FOREVER, seconds_to_return=5.0)])
WHOLE = Asynchronous(samples=SAMPLES)
SECONDS_PER_MINIBATCH = 0.01 * BATCH


def noticed_at(seconds: float, strategy: Strategy, on: Simulated = ONE) -> list[Record]:
    """Return the records of a simulated run with a preemption notice for its first machine at time `seconds`."""
    with prepared(Recipe(a_job(), strategy, on, RunConfig(until="epochs>=2"))) as training:
        run = DrivenRun(training)
        while message := run.engine.next(seconds):
            run.deliver(message)
        run.faults.leave(on.machines[0].name)
        run.finish()
        return run.records


@pytest.mark.parametrize(
    ("notice", "minibatches"), [(2.5, 3), (3.0, 3), (0.5, 1), (5.5, 6)], ids=lambda value: f"{value}"
)
def test_leaving_simulated_machine_returns_a_partial_task(notice: float, minibatches: int) -> None:
    records = noticed_at(notice * SECONDS_PER_MINIBATCH, WHOLE)
    now, samples = times(records, Arrived)[0], updates(records)[0].samples
    assert samples == minibatches * BATCH
    assert now == pytest.approx(minibatches * SECONDS_PER_MINIBATCH)
    assert times(records, Leaving) == [pytest.approx(notice * SECONDS_PER_MINIBATCH)]
    assert times(records, Lost) == [pytest.approx(now)], "it goes when that is done"
    assert next(merges(records)) == [Span(0, 0, samples)]


def test_idle_machine_leaves_at_once() -> None:
    fleet = Simulated([Machine("quick", 0.001), Machine("slow", 0.01)])
    records = noticed_at(0.04, Synchronous(), fleet)
    assert times(records, Leaving, Lost) == [pytest.approx(0.04)] * 2


def test_queued_tasks_of_a_leaving_machine_are_cancelled() -> None:
    records = noticed_at(SECONDS_PER_MINIBATCH / 2, Asynchronous(), replace(ONE, in_flight=3))
    ended = names(records, Arrived, Cancelled, Lost)
    assert ended[:4] == ["Arrived", "Cancelled", "Cancelled", "Lost"]


def test_second_notice_is_ignored() -> None:
    with prepared(Recipe(a_job(), WHOLE, ONE, RunConfig(until="epochs>=1"))) as training:
        run = DrivenRun(training)
        run.deliver(run.engine.next(1.0))
        for _ in range(2):
            run.faults.leave("m")
        run.finish()
        assert len(events(run.records, Leaving)) == 1


def test_leaving_machine_does_not_wait_for_a_cancelled_task() -> None:
    """The machine stops at its next minibatch, even if the request to cancel arrives later."""
    far = replace(ONE.machines[0], link=Link(latency_milliseconds=200))  # type: ignore[arg-type]  # no zone
    on = Simulated([far])
    with prepared(Recipe(a_job(), WHOLE, on, RunConfig(until="epochs>=1"))) as training:
        run = DrivenRun(training)
        run.deliver(run.engine.next(1.0))
        assert run.engine.next(0.25) is None
        run.faults.leave("m")
        (task,) = run.host.conductor.open
        run.deliver(run.engine.next(0.3))
        run.engine.abort(task, "m")
        run.until(lambda: run.has(Lost, "m"))
        assert run.records[-1].now < 0.25 + 2 * SECONDS_PER_MINIBATCH + 0.2


# --- worker processes --------------------------------------------------------------------------


class Recalled:
    """A training step that sends SIGTERM to its worker in the third minibatch of the run."""

    def __init__(self, folder: Path, signals: int) -> None:
        self.folder, self.signals = folder, signals

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        with (self.folder / "minibatches").open("a") as file:
            if file.write(".") and file.tell() == 3:
                for _ in range(self.signals):
                    os.kill(os.getpid(), signal.SIGTERM)
        return cross_entropy(model(batch[0]), batch[1])


def recalled(folder: Path, strategy: Strategy, on: Place, signals: int = 1) -> Run:
    run, state = trained(a_job(training_step=Recalled(folder, signals)), strategy, on, "epochs>=2")
    assert len(state.merged) == 2 * SAMPLES
    assert (run.summary["workers_left"], run.summary["workers_lost"]) == (1, 0)
    assert "lost" not in run.summary["wasted"]
    return run


def test_leaving_worker_returns_a_partial_task(tmp_path: Path) -> None:
    """A worker with a notice returns the finished part of its task. A second notice has no effect."""
    run = recalled(tmp_path, WHOLE, local(1), signals=2)
    (first, *rest) = merges(run.records)
    assert first == [Span(0, 0, 3 * BATCH)]
    assert rest[0] == [Span(0, 3 * BATCH, SAMPLES)], "its replacement computes the rest"
    # A part of a task has a proportional share in the step.
    steps = [action for r in run.records for action in r.actions if isinstance(action, Step)]
    assert [share for step in steps for share in step.shares.values()] == [0.5, 0.5, 1.0]
    assert run.summary["samples_wasted"] == 0


def test_queued_tasks_of_a_leaving_worker_are_cancelled(tmp_path: Path) -> None:
    run = recalled(tmp_path, Asynchronous(samples=4 * BATCH), local(1, in_flight=2))
    message = names(run.records, Leaving, Arrived, Cancelled, Lost)
    assert message[:4] == ["Leaving", "Arrived", "Cancelled", "Lost"]
    assert updates(run.records)[0].samples == 3 * BATCH


def test_leaving_worker_returns_its_local_steps(tmp_path: Path) -> None:
    """The change after three local steps counts as three steps."""
    run = recalled(tmp_path, LocalSGD(steps=6), local(1))
    assert next(merges(run.records)) == [Span(0, 0, 3 * BATCH)]


def test_partial_tasks_merge_like_a_plain_loop(tmp_path: Path) -> None:
    """A round with notice to one of two workers makes the same step as a plain loop over the same samples."""
    torch.manual_seed(0)
    run = recalled(tmp_path, Synchronous(samples=SAMPLES // 2), local(2))
    assert distance(run.model, plain_loop(a_job(), list(merges(run.records)))) < 1e-6
