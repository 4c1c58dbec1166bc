"""Exact rounds: the bits of the model depend on neither the workers nor their losses."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import oddlot
from oddlot import (
    SGD,
    Adam,
    Asynchronous,
    BackupTasks,
    Deadline,
    Groups,
    Job,
    Local,
    Machine,
    ProportionalLoad,
    Quorum,
    Simulated,
    Strategy,
    Synchronous,
)
from oddlot.codecs import Half
from oddlot.core import sum_tree
from oddlot.core.commands import Start
from oddlot.core.events import Lost, UpdateRejected
from oddlot.core.sample_spans import Span
from oddlot.core.sum_tree import samples_sent
from oddlot.core.support.errors import JobError, UsageError
from oddlot.core.tasks import Kind, Task
from oddlot.engines.simulated import task_execution
from oddlot.faults import Chaos, Fault
from oddlot.history.audit import prove
from oddlot.history.run_folder import RunFolder
from oddlot.machines.machine import Lifetime
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.strategies.support import exact_rounds
from oddlot.train.learner import Learner
from oddlot.train.learner_inputs import LearnerInputs
from tests.fits import distance, local, trained
from tests.run.test_resume import KillAt, Killed
from tests.transcripts import raises, warns

pytestmark = pytest.mark.usefixtures("fork_server", "warm_start")

SAMPLES, ROUND = 1_409, 700
"""Rounds of six chunks, the last one of 60 samples, and a last round of nine samples."""


def rows() -> tuple[Tensor, Tensor]:
    points = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(5))
    return points, points.argmax(1)


def net(dropout: float = 0.4) -> nn.Module:
    """Return a network with dropout, so that random numbers must not depend on the division into tasks."""
    return nn.Sequential(nn.Linear(6, 37), nn.LayerNorm(37), nn.Tanh(), nn.Dropout(dropout), nn.Linear(37, 6))


def a_job(**changes: Any) -> Job:
    return replace(
        Job(net, rows(), cross_entropy, batch_size=ROUND, optimizer=Adam(0.01), device="cpu"), **changes
    )


def bits(model: nn.Module) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())


def machines(*seconds: float, **settings: Any) -> Simulated:
    return Simulated([Machine(f"m{at}", each, **settings) for at, each in enumerate(seconds)])


@pytest.fixture(scope="module")
def expected() -> bytes:
    """Return the bits of a model that one worker has trained."""
    run, _ = trained(a_job(), Synchronous(exact=True), machines(0.001))
    return bits(run.model)


def test_round_is_a_step_along_the_mean_gradient() -> None:
    job = a_job(model=partial(net, 0.0), optimizer=SGD(1.0), batch_size=SAMPLES)
    run, _ = trained(job, Synchronous(exact=True), machines(0.001, 0.002, 0.003), "versions>=1")
    torch.manual_seed(0)
    model = net(0.0)
    points, classes = rows()
    cross_entropy(model(points), classes).backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(model.parameters(), 1.0).step()
    assert 0 < distance(model, run.model) < 1e-6


SIMULATED: dict[str, tuple[Strategy, Simulated, dict[str, Any]]] = {
    "three": (Synchronous(exact=True), machines(0.001, 0.002, 0.005), {}),
    "two in flight": (Synchronous(exact=True), replace(machines(0.001, 0.002), in_flight=2), {}),
    "backup tasks": (BackupTasks(Synchronous(exact=True)), machines(0.001, 0.001, 0.1), {}),
    "deadline": (Deadline(Synchronous(exact=True), 0.2), machines(0.001, 0.004, 0.001), {}),
    "both": (BackupTasks(Deadline(Synchronous(exact=True), 0.3)), machines(0.001, 0.004, 0.01), {}),
    "epochs do not overlap": (Synchronous(exact=True), machines(0.001, 0.002), {"epoch_barrier": True}),
}


@pytest.mark.parametrize("case", SIMULATED)
def test_bits_do_not_depend_on_the_division(case: str, expected: bytes) -> None:
    strategy, on, settings = SIMULATED[case]
    run, _ = trained(a_job(), strategy, on, **settings)
    assert bits(run.model) == expected


@pytest.mark.filterwarnings("ignore:.*were lost with their machines")
@pytest.mark.parametrize("seed", range(8))
def test_bits_do_not_depend_on_faults(seed: int, expected: bytes) -> None:
    """All kinds of faults happen to workers, which also vanish, return and have unequal speeds."""
    chance = Random(seed)
    on = Simulated(
        [
            Machine(f"m{at}", chance.choice([0.001, 0.004]), lifetime=Lifetime(8.0), seconds_to_return=0.2)
            for at in range(chance.randint(2, 5))
        ],
    )
    faults = [
        Fault("slow", every_seconds=0.9, factor=5.0, for_seconds=0.5),
        Fault("freeze", every_seconds=1.7, for_seconds=0.3),
        Fault("delay", every_seconds=0.7, delay_seconds=0.4),
        *(Fault(kind, every_seconds=chance.uniform(2.0, 4.0)) for kind in ("kill", "leave", "drop")),
        Fault("corrupt", every_seconds=5.0),
    ]
    strategy = chance.choice([Synchronous(exact=True), BackupTasks(Deadline(Synchronous(exact=True), 0.2))])
    run, _ = trained(a_job(), strategy, on, chaos=Chaos(faults, seed), seed=0)
    assert any(isinstance(record.event, Lost) for record in run.records)
    assert bits(run.model) == expected


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_processes_have_the_bits_of_the_simulation(workers: int, expected: bytes) -> None:
    chaos = Chaos([Fault("kill", at_versions=(1, 3))]) if workers > 1 else None
    run, _ = trained(a_job(), BackupTasks(Synchronous(exact=True)), local(workers), chaos=chaos)
    assert any(isinstance(record.event, Lost) for record in run.records) is (workers > 1)
    assert bits(run.model) == expected


def test_resume_in_mid_round_has_the_same_bits(tmp_path: Path, expected: bytes) -> None:
    """Updates that wait in the checkpoint's inbox count, and other workers compute the others."""
    options: dict[str, Any] = {"until": "epochs>=2", "out": tmp_path, "checkpoint_every": "0.01 seconds"}
    with pytest.raises(Killed):
        oddlot.fit(
            a_job(),
            Synchronous(exact=True),
            machines(0.001, 0.002, 0.02),
            callbacks=[KillAt(2.0)],
            **options,
        )
    run, _ = trained(
        a_job(), Synchronous(exact=True), machines(0.001, 0.003), folder=RunFolder(tmp_path), resume=True
    )
    assert bits(run.model) == expected


def test_tasks_of_a_round_are_subtrees_of_all_workers() -> None:
    """Eight chunks for three workers: two each, and one each of the rest."""
    run, _ = trained(a_job(batch_size=1_024), Synchronous(exact=True), machines(*[0.001] * 3), "versions>=1")
    tasks = [one.task for record in run.records for one in record.actions if isinstance(one, Start)]
    later = [span.stop - span.start for task in tasks for span in task.spans if span.start >= 1_024]
    assert all(task.kind == "sum" for task in tasks)
    assert later, "the next round has begun"
    proof = prove(run.records, SAMPLES)
    assert not proof.faults


def test_round_with_fewer_chunks_than_workers_warns(expected: bytes) -> None:
    with warns("few_chunks", chunks=6, workers=9):
        run, _ = trained(a_job(), Synchronous(exact=True), machines(*[0.001] * 9))
    assert bits(run.model) == expected


def test_task_that_ends_early_sends_a_subtree() -> None:
    """After three chunks, the sum of the first two is sent."""
    job = a_job()
    layout = Layout.from_module(job.model())
    learner = Learner(LearnerInputs(job=job, layout=layout, constants=layout.constants(job.model())))
    weights, sums = FlatBuffer.empty(layout), [FlatBuffer.empty(layout) for _ in range(2)]
    weights.gather(job.model())
    learner.load(0, weights)
    stops = iter([False, False, False, True])
    works = [
        learner.step(weights, Task("w1:1", "w1", (Span(0, 0, stop),), 0, "sum"), out, asked)
        for stop, out, asked in zip((700, 256), sums, (lambda: next(stops), lambda: False), strict=True)
    ]
    assert [work.samples for work in works if work] == [256, 256]
    assert works[0] == works[1]
    assert torch.equal(sums[0].memory, sums[1].memory)


def test_sum_is_computed_with_one_thread() -> None:
    """The order of additions in a matrix product may depend on the number of threads."""
    threads = list[int]()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        threads.append(torch.get_num_threads())
        return cross_entropy(outputs, targets)

    job = a_job(loss=loss)
    layout = Layout.from_module(job.model())
    learner = Learner(LearnerInputs(job=job, layout=layout, constants=layout.constants(job.model())))
    weights, before = FlatBuffer.empty(layout), torch.get_num_threads()
    weights.gather(job.model())
    learner.load(0, weights)
    try:
        torch.set_num_threads(2)
        learner.step(weights, Task("w1:1", "w1", (Span(0, 0, 700),), 0, "sum"), FlatBuffer.empty(layout))
    finally:
        torch.set_num_threads(before)
    assert {*threads} == {1}


def test_update_of_a_part_of_a_subtree_is_rejected(monkeypatch: pytest.MonkeyPatch, expected: bytes) -> None:
    """A worker that sends what it has at the deadline, instead of a complete subtree, is not believed."""
    lies = iter([True])

    def lying(kind: Kind, done: int, samples: int) -> int:
        sent = samples_sent(kind, done, samples)
        return done if sent != done and next(lies, False) else sent

    monkeypatch.setattr(task_execution, "samples_sent", lying)
    run, _ = trained(a_job(), Deadline(Synchronous(exact=True), 0.3), machines(0.001))
    assert [e.code for r in run.records if isinstance(e := r.event, UpdateRejected)] == ["wrong_samples"]
    assert bits(run.model) == expected


HISTORIES: dict[str, Callable[[], Strategy]] = {
    "alone": lambda: Synchronous(9, exact=True),
    "backup_tasks": lambda: BackupTasks(Synchronous(7, exact=True)),
    "deadline": lambda: Deadline(BackupTasks(Synchronous(11, exact=True)), 0.3),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_invariants_hold_in_random_histories_of_small_chunks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sum_tree, "CHUNK", 2)
    monkeypatch.setattr(exact_rounds, "CHUNK", 2)
    oddlot.testing.check_strategy(HISTORIES[name], examples=40)


class Moving(nn.Module):
    """A layer with a running mean in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.mean = nn.Linear(6, 6), torch.zeros(())

    def forward(self, points: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * points.detach().mean()
        return self.linear(points - self.mean)  # type: ignore[no-any-return]  # a module


def test_state_of_a_worker_is_rejected() -> None:
    with raises(JobError, "chunk_does_not_repeat", parameter="linear.weight"):
        trained(a_job(model=Moving), Synchronous(exact=True), machines(0.001))


def test_exact_rounds_after_merges_out_of_order_are_rejected(tmp_path: Path) -> None:
    folder, on = RunFolder(tmp_path), machines(0.001, 0.0017, 0.003)
    trained(a_job(batch_size=100), Asynchronous(), on, "versions>=3", folder)
    with raises(UsageError, "samples_not_in_order", epoch=0):
        trained(a_job(), Synchronous(exact=True), on, folder=folder, resume=True, new_segment=True)


def by_weight(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """Return the mean loss of some classes, and the number of their samples."""
    kept = targets < 4
    return cross_entropy(outputs[kept], targets[kept]), int(kept.sum())


SETTINGS: dict[str, dict[str, Any]] = {
    "weights": {"loss": by_weight},
    "scripts": {
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        "lr_scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
        "lr_scheduler_every": "version",
        "max_grad_norm": 0.1,
        "ema_decay": 0.9,
        "micro_batch_size": 50,
        "unfreeze_at": {"0.*": 1},
    },
    "bf16": {"precision": "bf16"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_bits_do_not_depend_on_workers_with_settings_of_scripts(name: str) -> None:
    ends = [
        trained(a_job(**SETTINGS[name]), Synchronous(exact=True), on)[0].model
        for on in (machines(0.001), machines(0.001, 0.003, 0.002))
    ]
    assert bits(ends[0]) == bits(ends[1])


def test_round_has_the_mean_over_weights() -> None:
    job = a_job(model=partial(net, 0.0), optimizer=SGD(1.0), batch_size=SAMPLES, loss=by_weight)
    run, _ = trained(job, Synchronous(exact=True), machines(0.001, 0.002), "versions>=1")
    torch.manual_seed(0)
    model = net(0.0)
    points, classes = rows()
    by_weight(model(points), classes)[0].backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(model.parameters(), 1.0).step()
    assert 0 < distance(model, run.model) < 1e-6


def test_buffer_that_training_changes_is_rejected() -> None:
    job = a_job(model=lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)))
    with raises(JobError, "buffer_in_exact_round", buffer="1.running_mean"):
        trained(job, Synchronous(exact=True), machines(0.001))


UNFIT: dict[str, Callable[..., Any]] = {
    "codec": partial(trained, a_job(), codec=Half("bf16")),
    "skip_bad": partial(trained, a_job(), skip_bad=True),
    "shards": partial(trained, a_job(), shards=2),
    "precision": partial(trained, a_job(precision="fp16")),
    "sparse": partial(trained, a_job(sparse=True)),
    "lr_scheduler": partial(
        trained,
        a_job(
            eval_data=rows(),
            optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.1),
            lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
        ),
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_setting_with_which_bits_depend_on_workers_is_rejected(name: str) -> None:
    with raises(UsageError, "setting_not_exact", name=name):
        UNFIT[name](strategy=Synchronous(exact=True), on=machines(0.001))


def test_several_threads_are_rejected() -> None:
    with raises(UsageError, "setting_not_exact", name="threads"):
        trained(a_job(), Synchronous(exact=True), Local(1, threads=2))


@pytest.mark.parametrize("wrapper", [ProportionalLoad, Quorum, Groups])
def test_wrapper_that_changes_tasks_or_shares_is_rejected(wrapper: type) -> None:
    with raises(UsageError, "wrapper_not_exact", wrapper=wrapper.__name__):
        wrapper(Synchronous(exact=True))
