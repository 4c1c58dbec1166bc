"""Worker processes: deaths, errors of the job's code, hung processes, and limits."""

import logging
import os
import resource
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import oddlot
from oddlot import Asynchronous, JobError, Local, Strategy, Synchronous, UsageError
from oddlot.core import task_timeouts, worker_stats
from oddlot.core.events import Arrived, Evaluated, Joined, Lost, Stimulus
from oddlot.core.support.errors import short
from oddlot.engines.host import Message, ReceivedUpdate
from oddlot.engines.local.engine import LocalEngine
from oddlot.engines.local.messages import Say, decode, encode
from oddlot.engines.processes import evaluations, respawn as respawns
from oddlot.engines.processes.user_code_error import plain_failure
from oddlot.model.weight_store import WeightStore
from oddlot.run.config import RunConfig
from oddlot.run.recipe import Recipe
from oddlot.run.training import prepared
from oddlot.testing.engine_check import DrivenRun
from oddlot.train.job import Job
from tests.engines.log import events
from tests.fits import SAMPLES, Place, a_job, fleet, local, net, rows, this_worker
from tests.processes import ends
from tests.transcripts import mask, raises, warns

pytestmark = pytest.mark.usefixtures("fork_server")

HUB = os.getpid()


@contextmanager
def trial(
    on: Local, strategy: Strategy | None = None, job: Job | None = None, epochs: int = 2
) -> Iterator[tuple[DrivenRun, LocalEngine]]:
    """Return a run that the test drives message by message."""
    settings = RunConfig(until=f"epochs>={epochs}")
    with prepared(Recipe(job or a_job(), strategy or Asynchronous(), on, settings)) as training:
        run = DrivenRun(training)
        assert isinstance(run.engine, LocalEngine)
        yield run, run.engine


def next_message(run: DrivenRun) -> Message:
    """Wait for the next message."""
    while (heard := run.next()) is None:
        pass
    return heard


def hears(engine: LocalEngine, event: Stimulus) -> None:
    """Wait for this message of the engine. Discard earlier messages."""
    while engine.next(inf) != event:
        pass


# --- deaths --------------------------------------------------------------------------------------


def test_idle_worker_is_replaced_three_times_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(respawns, "DEATHS_BEFORE_GIVING_UP", 99)
    with trial(local(1)) as (_, engine):
        server = Path(f"/proc/{engine.processes.fork_server.process.pid}/fd")
        for life in ("w1", "w1.2", "w1.3", "w1.4"):
            hears(engine, Joined(life))
            descriptors = len(list(server.iterdir()))
            os.kill(engine.processes.running[life].pid, signal.SIGKILL)
            hears(engine, Lost(life))
            if life == "w1":
                first, before = engine.now, descriptors
        while not engine.processes.policy.timers:  # until its end is reported
            assert engine.next(inf) is None
        ((again, index),) = engine.processes.policy.timers
        assert index == 0
        assert abs(again - 60 - first) < 1
        assert descriptors == before, "the fork server keeps nothing of the dead"
        engine._began -= 60  # a minute passes
        hears(engine, Joined("w1.5"))


def test_productive_worker_is_replaced_at_once() -> None:
    """Deaths with updates in between do not end the run, unlike deaths without any update."""
    seconds = list[float]()
    with trial(local(1), epochs=50) as (run, engine):
        for life in ("w1", "w1.2", "w1.3", "w1.4"):
            run.until(lambda life=life: run.answers(life, echo=False) > 0)  # type: ignore[misc]
            killed = engine.now
            engine.faults.kill(life)
            run.until(lambda life=life: run.has(Lost, life))  # type: ignore[misc]
            seconds.append(engine.now - killed)
        run.until(lambda: run.has(Joined, "w1.5"))
    assert min(seconds) < 1


def test_update_sent_before_a_kill_is_received() -> None:
    """A worker's messages count even if the fork server's report of its end is read first."""
    with trial(local(1)) as (run, engine):
        run.deliver(Joined(run.joined()))
        life = engine.processes.running["w1"]
        readable(life.socket)
        engine.faults.kill("w1")
        while "w1" in engine.processes.running and readable(engine.processes.fork_server.socket):
            engine.processes.hear_server()
        assert [type(message) for message in engine.processes.messages] == [ReceivedUpdate, Lost]


def readable(it: socket.socket) -> bool:
    """Wait until the socket is readable."""
    return bool(select.select([it], [], [])[0])


def test_tasks_for_a_worker_with_unreported_loss_are_accepted() -> None:
    with trial(local(2), Synchronous()) as (run, engine):
        for joined in [next_message(run), next_message(run)]:
            run.deliver(joined)
        first, second = next_message(run), next_message(run)
        assert isinstance(first, ReceivedUpdate)
        run.deliver(first)
        node = first.facts.sender
        engine.faults.kill(node)
        lost = next_message(run)
        assert lost == Lost(node)
        run.deliver(second)  # the round closes, and all workers get tasks
        assert run.host.conductor.busy[node]
        run.deliver(lost)
        run.finish()


def test_error_sent_before_a_worker_exits_is_received(tmp_path: Path) -> None:
    """The error of a worker with unread messages is received."""
    os.mkfifo(tmp_path / "computing")

    def fails_when_told_more(_: Tensor, __: Tensor) -> Tensor:
        (tmp_path / "computing").write_text("")
        this_worker().hub.recv(1, socket.MSG_PEEK)
        raise ArithmeticError("my own mistake")

    with trial(local(1), job=a_job(loss=fails_when_told_more)) as (run, engine):
        node = run.joined()
        run.deliver(Joined(node))
        (tmp_path / "computing").read_text()  # waits until it is written
        with ends([engine.processes.running[node].pid]):
            engine.abort("w1:1", node)
        with raises(JobError, "user_code_failed", where="w1") as caught:
            run.finish()
    assert "my own mistake" in caught.fields["reason"]


class Gate:
    """A loss function that reports the start of a minibatch, then waits until the test lets it continue."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / "computing", folder / "go"]
        for path in self.paths:
            os.mkfifo(path)
        self.computing, self.go = (os.open(path, os.O_RDWR) for path in self.paths)

    def loss(self) -> Any:
        """Return the loss function for a job. It holds only paths, so that it can be pickled."""
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
        """Wait for the start of one minibatch."""
        os.read(self.computing, 1)

    def open(self, count: int = 1) -> None:
        """Let `count` minibatches continue."""
        os.write(self.go, bytes(count))


@pytest.mark.parametrize("normed", [False, True])
def test_model_is_updated_in_place_once_workers_have_copies(tmp_path: Path, normed: bool) -> None:
    """Buffers are read again at the end of a task, so a version with buffers stays unchanged during the task."""
    gate = Gate(tmp_path)
    model = (lambda: nn.Sequential(nn.BatchNorm1d(2), net())) if normed else net
    with trial(local(2), job=a_job(model, loss=gate.loss())) as (run, _):
        run.until(lambda: len(run.host.holds) == 2)
        gate.wait()
        gate.wait()
        store = run.host.store
        assert isinstance(store, WeightStore)
        block = store.weights
        gate.open()
        run.until(lambda: run.host.conductor.version == 1)
        assert (store.weights is block) is not normed
        gate.open(100)
        run.finish()


def test_queued_task_has_not_loaded_its_version(tmp_path: Path) -> None:
    """The worker has not loaded the version, even if an earlier task used the same block for its update."""
    gate = Gate(tmp_path)
    with trial(local(1, in_flight=2), job=a_job(loss=gate.loss())) as (run, _):
        run.until(lambda: len(run.host.holds) == 2)
        for task in (1, 2, 3):
            gate.wait()
            assert list(run.host.port.loaded()) == [f"w1:{task}"]
            gate.open()
            while run.host.conductor.version < task:
                run.deliver(run.next())
        gate.open(100)
        run.finish()


def exits(*_: Any) -> nn.Module:
    return net() if os.getpid() == HUB else os._exit(7)


def is_killed(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("changes", "node", "exit_code"),
    [
        ({"model": exits}, "w1.3", 7),
        ({"loss": is_killed}, "w1.3", -signal.SIGKILL),
        ({"eval_data": rows(), "metrics": {"deadly": exits}}, "evaluator", 7),
    ],
    ids=["at their start", "in every task", "the evaluator alone"],
)
def test_processes_that_keep_dying_end_the_run(
    changes: dict[str, Any], node: str, exit_code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The run ends, and the log has each exit."""
    caplog.set_level(logging.INFO)
    options: dict[str, Any] = {"until": "epochs>=1e6", "evaluate_every": "1 versions"}
    with raises(JobError, "workers_keep_dying", node=node, exit_code=exit_code):
        oddlot.fit(a_job(**changes), Asynchronous(), local(1), **options)
    logged = [record.args[-1] for record in caplog.records if isinstance(record.args, tuple) and record.args]
    assert logged.count(abs(exit_code)) == 3


def test_evaluator_that_dies_at_start_is_replaced_once() -> None:
    """Another evaluation of the version is requested while the evaluator ends."""
    with trial(local(1), job=a_job(eval_data=rows())) as (run, engine):
        run.deliver(Joined(run.joined()))
        run.host.evaluate(0)
        forks = engine.processes.fork_server.forks
        engine.processes.lose(engine.processes.running["evaluator"])
        engine.evaluate(0, run.host.store.acquire(0))
        run.until(lambda: bool(events(run.records, Evaluated)))
        assert engine.processes.fork_server.forks == forks + 1


def test_last_loss_without_respawn_ends_the_run() -> None:
    with trial(local(2, respawn=False)) as (run, engine):
        for _ in range(2):
            node = run.joined()
            run.deliver(Joined(node))
            engine.faults.kill(node)
        with raises(JobError, "no_workers_left"):
            run.finish()


def test_frozen_workers_task_times_out() -> None:
    with trial(local(2), epochs=4) as (run, engine):
        members = run.host.conductor.worker_stats.members
        run.until(lambda: any(member.results >= 5 for member in members.values()))
        node = next(node for node, member in members.items() if member.results >= 5)
        engine.faults.freeze(node)
        run.finish()
        assert members[node].timeouts == 1


@pytest.mark.parametrize("name", ["workers", "in_flight", "threads"])
def test_zero_workers_tasks_or_threads_are_rejected(name: str) -> None:
    settings: Any = {name: 0}
    with raises(UsageError, "invalid_value", name=name, given=0):
        Local(**settings)


# --- errors of the job's code --------------------------------------------------------------------


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


MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "model": ({"model": fails}, "the hub", "the hub"),
    "train_data": ({"train_data": Broken()}, "m0", "w1"),
    "metric": ({"eval_data": rows(), "metrics": {"mine": fails}}, "the evaluator", "evaluator"),
    "loss": ({"loss": fails}, "m0", ""),
    "training_step": ({"training_step": fails, "loss": None}, "m0", ""),
    "collate": ({"train_data": [(torch.zeros(2), 0)] * 16, "collate": fails}, "m0", ""),
    "model elsewhere": ({"model": fails_elsewhere}, "", "w1"),
}
"""Errors of a job, and their reported locations on simulated machines and on worker processes. Empty: not tested."""


@pytest.mark.parametrize(
    ("mistake", "on", "where"),
    [
        (mistake, on, where)
        for mistake, (_, *places) in MISTAKES.items()
        for on, where in zip((fleet(1), local(1)), places, strict=True)
        if where
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_user_exception_ends_the_run_with_its_traceback(mistake: str, on: Place, where: str) -> None:
    with raises(JobError, "user_code_failed", where=where) as caught:
        oddlot.fit(a_job(**MISTAKES[mistake][0]), Asynchronous(), on, until="epochs>=1")
    reason = caught.fields["reason"]
    assert "Traceback" in reason
    assert ("sample 3 is gone" if mistake == "train_data" else "ArithmeticError: my own mistake") in reason


@pytest.mark.parametrize("character", ["x", "\N{SNOWMAN}", "\N{SNAKE}", "\x00", "\udcff"])
def test_long_error_message_is_truncated(character: str) -> None:
    for error in (ValueError(character * 100_000), JobError(character * 100_000, "a_code", rows=[7])):
        kind, body = decode(encode(Say.FAILED, **plain_failure(error)))
        assert kind is Say.FAILED
        assert character * 900 in body["text"]


class Shy:
    """An object with a repr that fails."""

    def __repr__(self) -> str:
        raise RuntimeError


def test_oversized_error_fields_are_dropped() -> None:
    error = JobError("\N{SNAKE}" * 5_000, "a_code", given=3, long="x" * 5_000, shy=Shy(), model=net)
    _, body = decode(encode(Say.FAILED, **plain_failure(error)))
    assert (body["code"], body["text"]) == ("a_code", str(error))
    assert body["fields"] == {"given": 3, "model": short(net)}


def test_worker_error_keeps_its_code_and_fields() -> None:
    with raises(JobError, "loss_not_scalar", shape=[8, 2]):
        oddlot.fit(a_job(loss=lambda y, t: y), Asynchronous(), local(1), until="epochs>=1")


# --- hangs and crashes ---------------------------------------------------------------------------


DEADLY: dict[str, Callable[[], object]] = {
    "ended by exit code 3": lambda: os._exit(3),
    "ended by SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "ended by SIGABRT": os.abort,
    "hung": signal.pause,
}


class Deadly(Dataset[tuple[Tensor, Tensor]]):
    """A dataset that ends or hangs a process that reads row 7."""

    def __init__(self, how: str) -> None:
        self.how, self.rows = how, rows()

    def __len__(self) -> int:
        return len(self.rows[0])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == 7:
            DEADLY[self.how]()
        return self.rows[0][index], self.rows[1][index]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts, so that a worker soon counts as hung."""
    monkeypatch.setattr(task_timeouts, "HUNG_SECONDS", 1.0)
    monkeypatch.setattr(task_timeouts, "HUNG_TIMEOUTS", 1.0)
    monkeypatch.setattr(worker_stats, "SECONDS_UNTIL_KNOWN", 0.5)
    monkeypatch.setattr(worker_stats, "MIN_TIMEOUT_SECONDS", 0.5)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", DEADLY)
def test_sample_that_kills_or_hangs_three_workers_is_named(how: str) -> None:
    with (
        warns("worker_hung") if how == "hung" else nullcontext(),
        pytest.raises(JobError) as caught,
    ):
        oddlot.fit(a_job(train_data=Deadly(how)), Synchronous(), local(1), until="epochs>=5")
    assert caught.value.code == "bad_samples"
    assert 7 in caught.value.fields["rows"]
    assert caught.value.fields["task"].startswith("w1.3:")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", ["ended by SIGSEGV", "hung"])
def test_deadly_sample_is_skipped_with_skip_bad(how: str) -> None:
    with warns("worker_hung") if how == "hung" else nullcontext():
        run = oddlot.fit(
            a_job(train_data=Deadly(how)), Asynchronous(), local(1), until="epochs>=1", skip_bad=True
        )
    assert run.ended == "epochs>=1"
    assert 1 <= run.summary["samples_skipped"] <= 2 * 8
    assert run.summary["samples_merged"] == SAMPLES - run.summary["samples_skipped"]


@pytest.mark.usefixtures("impatient")
def test_frozen_workers_are_replaced() -> None:
    mask(node=r"w\d(?= )")
    with warns("worker_hung"), trial(local(2), epochs=10**6) as (run, engine):
        busy = run.host.conductor.busy
        run.until(lambda: len(busy) == 2 and len(events(run.records, Arrived)) > 10)
        for node in list(busy):
            engine.faults.freeze(node)
        run.until(lambda: len(events(run.records, Lost)) == 2)
        run.until(lambda: busy.keys() == {"w1.2", "w2.2"})


def test_frozen_evaluator_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluations, "MIN_SECONDS", 0.5)
    monkeypatch.setattr(evaluations, "FIRST_SECONDS", 0.5)
    with trial(local(1), job=a_job(eval_data=rows())) as (run, engine):
        run.deliver(Joined(run.joined()))
        run.host.evaluate(0)
        run.until(lambda: bool(events(run.records, Evaluated)))
        engine.faults.freeze("evaluator")
        version = run.host.conductor.version
        engine.evaluate(version, run.host.store.acquire(version))
        with warns("evaluator_hung"):
            run.until(lambda: len(events(run.records, Evaluated)) == 2)


def test_idle_evaluator_death_is_no_failed_start() -> None:
    with trial(local(1), job=a_job(eval_data=rows())) as (run, engine):
        run.deliver(Joined(run.joined()))
        for count in range(1, 5):
            version = run.host.conductor.version
            engine.evaluate(version, run.host.store.acquire(version))
            run.until(lambda count=count: len(events(run.records, Evaluated)) == count)  # type: ignore[misc]
            before = engine.processes.fork_server.forks
            engine.faults.kill("evaluator")
            run.until(lambda before=before: engine.processes.fork_server.forks > before)  # type: ignore[misc]


# --- limits --------------------------------------------------------------------------------------


def test_messages_to_a_full_socket_are_queued() -> None:
    """Messages are queued while a busy or stopped worker does not read them."""
    on, job = Local(workers=1, threads=1, in_flight=700), a_job(count=700, batch_size=1)
    with trial(on, Asynchronous(samples=1), job, epochs=1) as (run, engine):
        node = run.joined()
        engine.faults.freeze(node)
        run.deliver(Joined(node))
        assert engine.processes.running[node].outbox, "there was room for all"
        engine.faults.thaw(node)
        answers = [next_message(run) for _ in range(700)]
        assert all(isinstance(answer, ReceivedUpdate) for answer in answers)


@pytest.mark.filterwarnings("ignore:workers = 150")
def test_too_many_open_files_raises() -> None:
    """Most files are open before the run, so only a few workers can start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while taken[-1] < 110:
            taken.append(os.dup(taken[0]))
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        with raises(JobError, "too_many_open_files", limit=128):
            oddlot.fit(a_job(count=200), Asynchronous(), local(150), until="epochs>=1")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in taken:
            os.close(one)


def marks_its_folder(outputs: Tensor, _: Tensor) -> Tensor:
    """Create a file in the working folder."""
    Path("worked").touch()
    return outputs.sum()


def test_workers_have_the_working_folder_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork server was started in another folder."""
    with trial(local(1)):
        monkeypatch.chdir(tmp_path)
    oddlot.fit(a_job(loss=marks_its_folder), Asynchronous(), local(1), until="epochs>=1", quiet=True)
    assert (tmp_path / "worked").exists()


class Annealed(nn.Linear):
    tau = 5.0

    def forward(self, x: Tensor) -> Tensor:
        self.tau *= 0.9
        return super().forward(x)


def test_worker_warnings_are_shown_by_the_run() -> None:
    job = a_job(lambda: Annealed(2, 2))
    with warns("attribute_changed", attribute="model.tau"):
        oddlot.fit(job, Synchronous(), local(1), until="epochs>=6")
