"""Worker processes: deaths, liars, bad numbers and the job's own mistakes."""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import oddlot
from oddlot import Asynchronous, JobError, Local, Strategy, Synchronous, UsageError
from oddlot.core import words as w
from oddlot.engines import local as local_engine
from oddlot.engines.host import Arrival, Message
from oddlot.engines.local import LocalEngine
from oddlot.recipe import Recipe, Settings
from oddlot.testing.engines import DrivenRun
from oddlot.train.job import Job
from oddlot.train.store import Store
from oddlot.training import prepared
from tests.fits import Place, a_job, fleet, local, net, rows, this_worker
from tests.processes import ends

pytestmark = pytest.mark.usefixtures("fork_server")

HUB = os.getpid()
BOTH = pytest.mark.parametrize("on", [local(2), fleet(2)], ids=["local", "simulated"])


@contextmanager
def trial(
    on: Local, strategy: Strategy | None = None, job: Job | None = None, epochs: int = 2
) -> Iterator[DrivenRun]:
    """A run that the test drives message by message."""
    settings = Settings(until=f"epochs>={epochs}")
    with prepared(Recipe(job or a_job(), strategy or Asynchronous(), on, settings)) as training:
        yield DrivenRun(training)


def message(run: DrivenRun) -> Message:
    """Wait for the next one."""
    while (heard := run.next()) is None:
        pass
    return heard


def hears(engine: LocalEngine, event: w.Stimulus) -> None:
    """Wait until the engine says this; nobody is told what it says before."""
    while engine.next(inf) != event:
        pass


# --- deaths --------------------------------------------------------------------------------------


def test_a_killed_worker_is_lost_within_a_second_and_replaced_under_a_new_name() -> None:
    with trial(local(2)) as run:
        node = run.joined()
        run.deliver(w.Joined(node))
        killed = time.monotonic()
        run.engine.kill(node)
        run.until(lambda: run.has(w.Lost, node))
        assert time.monotonic() - killed < 1
        run.until(lambda: run.has(w.Joined, f"{node}.2"))
        run.finish()


def test_a_worker_is_replaced_three_times_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_engine, "DEATHS_BEFORE_GIVING_UP", 99)
    with trial(local(1)) as run:
        engine: Any = run.engine
        server = Path(f"/proc/{engine.nursery.process.pid}/fd")
        for life in ("w1", "w1.2", "w1.3", "w1.4"):
            hears(engine, w.Joined(life))
            descriptors = len(list(server.iterdir()))
            engine.kill(life)
            hears(engine, w.Lost(life))
            if life == "w1":
                first, before = engine.now, descriptors
        ((again, index),) = engine.timers
        assert index == 0
        assert first - 1 < again - 60 <= first
        assert descriptors == before, "the fork server keeps nothing of the dead"
        engine._began -= 60  # a minute passes
        hears(engine, w.Joined("w1.5"))


def test_deaths_with_work_between_them_are_bad_luck() -> None:
    """They are no reason to give up, unlike lives that bring nothing."""
    with trial(local(1), epochs=50) as run:
        for life in ("w1", "w1.2", "w1.3"):
            run.until(lambda life=life: any(sent(record.event, life) for record in run.records))  # type: ignore[misc]
            run.engine.kill(life)
            run.until(lambda life=life: run.has(w.Lost, life))  # type: ignore[misc]
        run.until(lambda: run.has(w.Joined, "w1.4"))


def test_a_worker_that_had_worked_is_replaced_at_once_however_often_it_is_killed() -> None:
    with trial(local(1), epochs=50) as run:
        for life in ("w1", "w1.2", "w1.3", "w1.4", "w1.5"):
            run.until(lambda life=life: any(sent(record.event, life) for record in run.records))  # type: ignore[misc]
            run.engine.kill(life)
        run.until(lambda: run.has(w.Joined, "w1.6"))


def sent(event: w.Stimulus, node: w.NodeId) -> bool:
    return isinstance(event, w.Arrived) and event.update.sender == node


def test_what_a_worker_said_before_it_died_counts() -> None:
    """Although the fork server's word of its end is read first."""
    with trial(local(1)) as run:
        run.deliver(w.Joined(run.joined()))
        engine = run.engine
        assert isinstance(engine, LocalEngine)
        life = engine.lives["w1"]
        readable(life.socket)
        engine.kill("w1")
        while "w1" in engine.lives and readable(engine.nursery.socket):
            engine._hear_nursery()
        assert [type(message) for message in engine.ready] == [Arrival, w.Lost]


def readable(it: socket.socket) -> bool:
    """Wait until there is something to read."""
    return bool(select.select([it], [], [])[0])


def test_a_strategy_may_give_work_to_a_worker_whose_death_is_not_told_yet() -> None:
    with trial(local(2), Synchronous()) as run:
        for joined in [message(run), message(run)]:
            run.deliver(joined)
        first, second = message(run), message(run)
        assert isinstance(first, Arrival)
        run.deliver(first)
        node = first.facts.sender
        run.engine.kill(node)
        lost = message(run)
        assert lost == w.Lost(node)
        run.deliver(second)  # the round closes, and everybody is given work
        assert run.host.conductor.busy[node]
        run.deliver(lost)
        run.finish()


def test_what_a_worker_said_before_it_died_is_heard(tmp_path: Path) -> None:
    """Although it had not read all that it was told."""
    os.mkfifo(tmp_path / "computing")

    def fails_when_told_more(_: Tensor, __: Tensor) -> Tensor:
        (tmp_path / "computing").write_text("")
        this_worker().hub.recv(1, socket.MSG_PEEK)
        raise ArithmeticError("my own mistake")

    with trial(local(1), job=a_job(loss=fails_when_told_more)) as run:
        node = run.joined()
        assert isinstance(run.engine, LocalEngine)
        run.deliver(w.Joined(node))
        (tmp_path / "computing").read_text()  # waits until it is written
        with ends([run.engine.lives[node].pid]):
            run.engine.abort("w1:1", node)
        with pytest.raises(JobError, match=r"(?s)failed on w1:.*my own mistake"):
            run.finish()


class Gate:
    """A loss that tells when a worker computes and then waits until it is let through."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / "computing", folder / "go"]
        for path in self.paths:
            os.mkfifo(path)
        self.computing, self.go = (os.open(path, os.O_RDWR) for path in self.paths)

    def loss(self) -> Any:
        """For a job; it holds paths alone, so that it can travel."""
        paths = self.paths

        def waits(outputs: Tensor, targets: Tensor) -> Tensor:
            computing, go = (os.open(path, os.O_RDWR) for path in paths)
            os.write(computing, b".")
            os.read(go, 1)
            os.close(computing)
            os.close(go)
            return nn.functional.cross_entropy(outputs, targets)

        return waits

    def wait(self) -> None:
        """Until one more minibatch is being computed."""
        os.read(self.computing, 1)

    def open(self, count: int = 1) -> None:
        """Let so many minibatches through."""
        os.write(self.go, bytes(count))


@pytest.mark.parametrize("normed", [False, True])
def test_the_model_changes_in_place_once_workers_compute_on_their_copies(
    tmp_path: Path, normed: bool
) -> None:
    """Buffers are read again at a task's end, so their version stays as it is until then."""
    gate = Gate(tmp_path)
    model = (lambda: nn.Sequential(nn.BatchNorm1d(2), net())) if normed else net
    with trial(local(2), job=a_job(model, loss=gate.loss())) as run:
        run.until(lambda: len(run.host.holds) == 2)
        gate.wait()
        gate.wait()
        store = run.host.store
        assert isinstance(store, Store)
        block = store.weights
        gate.open()
        run.until(lambda: run.host.conductor.version == 1)
        assert (store.weights is block) is not normed
        gate.open(100)
        run.finish()


def test_a_task_that_waits_in_its_worker_has_not_loaded_its_version(tmp_path: Path) -> None:
    """Although another task before it used the same block for its update."""
    gate = Gate(tmp_path)
    with trial(local(1, in_flight=2), job=a_job(loss=gate.loss())) as run:
        run.until(lambda: len(run.host.holds) == 2)
        for task in (1, 2, 3):
            gate.wait()
            assert list(run.host.port.loaded()) == [f"w1:{task}"]
            gate.open()
            while run.host.conductor.version < task:
                run.deliver(run.next())
        gate.open(100)
        run.finish()


def test_a_worker_that_cannot_start_ends_the_run() -> None:
    def dies() -> nn.Module:
        return net() if os.getpid() == HUB else os._exit(7)

    with pytest.raises(JobError, match=r"3 processes in a row died .* w1\.3, exited with code 7"):
        oddlot.fit(a_job(dies), Asynchronous(), local(1), until="epochs>=1")


def test_a_worker_that_dies_in_every_task_ends_the_run() -> None:
    job = a_job(loss=lambda y, t: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(JobError, match=r"3 processes in a row died .*, was ended by SIGKILL"):
        oddlot.fit(job, Asynchronous(), local(2), until="epochs>=1")


def test_an_evaluator_that_always_dies_ends_the_run_whatever_the_workers_do() -> None:
    job = a_job(evaluation=rows(), metrics={"deadly": lambda y, t: os._exit(7)})
    with pytest.raises(JobError, match=r"3 processes in a row died .* evaluator, exited with code 7"):
        oddlot.fit(job, Asynchronous(), local(1), until="epochs>=1e6", evaluate_every="1 versions")


def test_an_evaluator_that_dies_at_birth_is_replaced_once() -> None:
    """The fork server's word of the first one comes when the second one is on its way."""
    with trial(local(1), job=a_job(evaluation=rows())) as run:
        run.deliver(w.Joined(run.joined()))
        run.host.evaluate(0)
        engine = run.engine
        assert isinstance(engine, LocalEngine)
        engine._died(engine.lives["evaluator"])
        replacement = engine.lives["evaluator"]
        run.until(lambda: any(isinstance(record.event, w.Evaluated) for record in run.records))
        assert engine.lives["evaluator"] is replacement


def test_without_respawn_the_last_death_ends_the_run() -> None:
    with trial(local(2, respawn=False)) as run:
        for _ in range(2):
            node = run.joined()
            run.deliver(w.Joined(node))
            run.engine.kill(node)
        with pytest.raises(JobError, match="all workers are gone"):
            run.finish()


def test_a_frozen_workers_lease_lapses_and_the_run_ends() -> None:
    with trial(local(2), epochs=4) as run:
        members = run.host.conductor.roster.members
        run.until(lambda: any(member.results >= 5 for member in members.values()))
        node = next(node for node, member in members.items() if member.results >= 5)
        run.engine.freeze(node)
        run.finish()
        assert members[node].lapses == 1


@pytest.mark.parametrize("settings", [{"workers": 0}, {"in_flight": 0}, {"threads": 0}])
def test_at_least_one(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="= 0 must be at least 1"):
        Local(**settings)


# --- the job's own mistakes ----------------------------------------------------------------------


class Broken:
    """A dataset with a sample that cannot be read."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 3:
            raise FileNotFoundError("sample 3 is gone")
        return torch.zeros(2), 0


def fails(*_: Any) -> Any:
    raise ArithmeticError("my own mistake")


def fails_elsewhere() -> nn.Module:
    return net() if os.getpid() == HUB else fails()


MISTAKES: dict[str, dict[str, Any]] = {
    "model": {"model": fails},
    "data": {"data": Broken()},
    "loss": {"loss": fails},
    "training_step": {"training_step": fails, "loss": None},
    "metric": {"evaluation": rows(), "metrics": {"mine": fails}},
    "collate": {"data": [(torch.zeros(2), 0)] * 16, "collate": fails},
}


@BOTH
@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_exception_of_the_jobs_own_code_ends_the_run_with_its_traceback(mistake: str, on: Place) -> None:
    with pytest.raises(JobError) as error:
        oddlot.fit(a_job(**MISTAKES[mistake]), Asynchronous(), on, until="epochs>=1")
    told = str(error.value)
    assert "the job's own code failed on" in told
    assert "Traceback" in told
    assert ("sample 3 is gone" if mistake == "data" else "ArithmeticError: my own mistake") in told
    assert error.value.exit_code == 3


def test_a_model_that_fails_in_the_workers_alone_is_told() -> None:
    with pytest.raises(JobError, match=r"(?s)failed on w[12]:.*fails_elsewhere.*my own mistake"):
        oddlot.fit(a_job(fails_elsewhere), Asynchronous(), local(2), until="epochs>=1")


@pytest.mark.parametrize("character", ["x", "\N{SNOWMAN}", "\N{SNAKE}", "\x00", "\udcff"])
def test_a_long_message_is_cut(character: str) -> None:
    def long(*_: Any) -> Any:
        raise ValueError(character * 100_000 + " the end")

    with pytest.raises(JobError, match=r"the end$"):
        oddlot.fit(a_job(loss=long), Asynchronous(), local(1), until="epochs>=1")


def test_a_loss_that_is_not_scalar_is_told_in_a_sentence() -> None:
    with pytest.raises(
        JobError, match=r"^the loss of a batch must be a scalar tensor, not \(8, 2\): take its mean$"
    ):
        oddlot.fit(a_job(loss=lambda y, t: y), Asynchronous(), local(1), until="epochs>=1")


def test_a_job_that_cannot_travel_is_told() -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"cannot be sent to workers .*lock"):
        oddlot.fit(a_job(loss=lambda y, t: lock), Asynchronous(), local(1), until="epochs>=1")
