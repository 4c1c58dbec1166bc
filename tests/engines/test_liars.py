"""Tests of invalid messages of workers, and of updates with NaN or infinity."""

import json
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf, nan
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import oddlot
from oddlot import Asynchronous, Gossip, JobError, Strategy
from oddlot.codecs import Half
from oddlot.core.events import Lost, UpdateRejected
from oddlot.core.records import Record
from oddlot.core.support.errors import Rejection
from oddlot.core.support.serialization import to_plain
from oddlot.core.tasks import Facts
from oddlot.data.batches import order
from oddlot.engines.host import Message, ReceivedUpdate
from oddlot.engines.local import config as on_local, processes, worker as worker_module
from oddlot.engines.local.fork_client import packet_pair
from oddlot.engines.local.messages import Say, encode
from oddlot.run.config import RunConfig
from oddlot.run.recipe import Recipe
from oddlot.run.training import prepared
from oddlot.testing.engine_check import DrivenRun
from oddlot.wire.framing import pack
from oddlot.wire.packet import Packet
from tests.engines.log import events
from tests.fits import BATCH, SAMPLES, Place, a_job, everything, fleet, local, net, rows, this_worker, trained
from tests.transcripts import mask, raises, transcribe, warns

pytestmark = pytest.mark.usefixtures("fork_server")

HUB = os.getpid()
BOTH = pytest.mark.parametrize("on", [local(2), fleet(2)], ids=["local", "simulated"])


# --- invalid messages ----------------------------------------------------------------------------


class Puppets:
    """A fork server without processes. A test sends the messages of its workers."""

    pid = 2**31 - 1
    """A process id that is not in use."""

    def __init__(self) -> None:
        self.socket, self.other = packet_pair()
        self.workers: list[socket.socket] = []
        self.message = deque[tuple[Say, dict[str, Any]]]()
        self.killed = list[int]()

    def fork(self, _: int, __: list[int]) -> tuple[int, socket.socket]:
        ours, theirs = packet_pair()
        self.workers.append(theirs)
        self.message.append((Say.FORKED, {"number": len(self.workers), "pid": self.pid}))
        return len(self.workers), ours

    def kill(self, pid: int) -> None:
        self.killed.append(pid)
        self.message.append((Say.EXITED, {"pid": pid, "code": None}))
        self.other.send(b"there is something to receive")

    def receive(self) -> tuple[Say, dict[str, Any]] | None:
        return self.message.popleft() if self.message else None

    def close(self) -> None:
        for one in (self.socket, self.other, *self.workers):
            one.close()


@contextmanager
def puppet() -> Iterator[tuple[DrivenRun, Callable[[bytes], Message]]]:
    """Yield a run with the open task w1:1, and a function that sends a frame of its worker and returns the message."""
    puppets = Puppets()
    with (
        patch.object(on_local, "ForkClient", lambda: puppets),
        prepared(Recipe(a_job(), Asynchronous(), local(1), RunConfig(until="epochs>=1"))) as training,
    ):
        run = DrivenRun(training)

        def says(frame: bytes) -> Message:
            puppets.workers[0].send(frame)
            while (message := run.engine.next(inf)) is None:
                pass
            return message

        run.deliver(says(encode(Say.READY)))
        yield run, says


class NeverForks(Puppets):
    """A fork server that cannot fork."""

    def fork(self, index: int, fds: list[int]) -> tuple[int, socket.socket]:
        number, ours = super().fork(index, fds)
        self.message[-1] = Say.NOT_FORKED, {"number": number, "reason": "no more processes"}
        if number % 2:  # the fork server closes the worker's socket too, and the hub may detect this first
            self.workers[-1].close()
        else:
            self.other.send(b"there is something to receive")
        return number, ours


def test_system_that_cannot_fork_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "RETRY_SECONDS", 0.0)
    with (
        patch.object(on_local, "ForkClient", NeverForks),
        warns("cannot_fork", reason="no more processes"),
        raises(JobError, "cannot_fork", reason="no more processes"),
    ):
        trained(a_job(), Asynchronous(), local(1))


TRUE = Facts("w1:1", "w1", 0, BATCH, "gradient", 0.5, {"up": 0.1})


def done(**lies: Any) -> bytes:
    return encode(Say.DONE, facts=to_plain(TRUE) | lies)


NONSENSE = {
    "garbage": (b"garbage", "short_header"),
    "a damaged frame": (encode(Say.READY)[:-1], "wrong_size"),
    "too long": (pack(Say.CANCELLED, b" " * 100_000), "wrong_size"),
    "an unknown kind": (pack(99, b"{}"), "not_a_message"),
    "a hub's word": (encode(Say.TASK, task={}), "unexpected_message"),
    "another's word": (encode(Say.EXITED, pid=1, code=0), "unexpected_message"),
    "no JSON": (pack(Say.DONE, b"\xff{"), "not_a_message"),
    "no dictionary": (pack(Say.DONE, b"[1]"), "message_without_body"),
    "deep": (pack(Say.DONE, b"[" * 60_000), "not_a_message"),
    "ready again": (encode(Say.READY), "ready_twice"),
    "no facts": (encode(Say.DONE), "wrong_fields"),
    "facts that are text": (encode(Say.DONE, facts="w1:1"), "wrong_fields"),
    "cancelled what it has not": (encode(Say.CANCELLED, task="w1:999"), "no_such_task"),
    "cancelled nothing": (encode(Say.CANCELLED, task=[1]), "no_such_task"),
    "cancelled with bytes that cannot be": (
        encode(Say.CANCELLED, task="w1:1", bytes_down=-5),
        "invalid_bytes",
    ),
    "a warning without words": (encode(Say.WARNED), "invalid_warning"),
    "evaluated unasked": (encode(Say.EVALUATED, version=0, metrics={}), "unrequested_metrics"),
    "evaluated nothing": (encode(Say.EVALUATED, version=[0], metrics={}), "wrong_fields"),
    "evaluated to nothing": (encode(Say.EVALUATED, version=0, metrics={"a": None}), "wrong_fields"),
    "evaluated to no number": (encode(Say.EVALUATED, version=0, metrics={"a": nan}), "numbers_not_finite"),
    "nothing evaluated": (encode(Say.EVALUATED), "wrong_fields"),
    "an unknown word": (done(colour="red"), "wrong_fields"),
    "a task that was never given": (done(id="w1:999"), "no_such_task"),
    "another's facts": (done(sender="w9"), "invalid_facts"),
    "no name": (done(id=["w1:1"]), "wrong_fields"),
    "fewer than none": (done(samples=-1), "invalid_facts"),
    "half a sample": (done(samples=0.5), "wrong_fields"),
    "many": (done(bytes_up="1e999"), "wrong_fields"),
    "no kind": (done(kind=[1]), "wrong_fields"),
    "no time": (done(seconds={"up": nan}), "numbers_not_finite"),
    "an infinite loss": (done(loss=inf), "numbers_not_finite"),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_worker_that_sends_an_invalid_message_is_killed(what: str) -> None:
    frame, fault = NONSENSE[what]
    with puppet() as (run, says):
        with warns("invalid_message", node="w1", fault=fault):
            assert says(frame) == Lost("w1")
        assert run.engine.processes.fork_server.killed == [Puppets.pid]  # type: ignore[attr-defined]  # of worker processes
        run.until(lambda: "w1.2" in run.engine.processes.running)  # type: ignore[attr-defined]  # of worker processes


@pytest.mark.parametrize(
    ("lie", "code"),
    [
        ({"samples": 0}, "wrong_samples"),
        ({"samples": 9}, "wrong_samples"),
        ({"based_on": 77}, "other_task"),
        ({"kind": "delta"}, "other_task"),
    ],
)
def test_update_with_wrong_facts_is_rejected(lie: dict[str, Any], code: str) -> None:
    with puppet() as (run, says):
        arrival = says(done(**lie))
        assert isinstance(arrival, ReceivedUpdate)
        with raises(Rejection, code, task="w1:1") as caught:
            run.host._believe(arrival.facts)
        run.deliver(arrival)
        assert events(run.records, UpdateRejected) == [UpdateRejected("w1:1", str(caught.value), code)]
        assert run.host.conductor.open.keys() == {"w1:2"}, "its samples are given out again"


def test_update_with_correct_facts_is_merged() -> None:
    with puppet() as (run, says):
        run.deliver(says(done()))
        assert run.host.conductor.version == 1


def patched(owner: Any, name: str, other: Callable[..., Any]) -> Callable[[], nn.Module]:
    """Return a model factory that patches a function in workers."""

    def model() -> nn.Module:
        if os.getpid() != HUB:
            patch.object(owner, name, other).start()
        return net()

    return model


def test_workers_that_send_invalid_messages_are_replaced() -> None:
    """Worker w1 sends garbage, and w2 sends facts with an unknown field."""

    def lies(facts: Facts) -> Any:
        if facts.sender == "w1":
            this_worker().hub.send(b"garbage")
        return to_plain(facts) | ({"colour": "red"} if facts.sender == "w2" else {})

    job = a_job(patched(worker_module, "to_plain", lies))
    mask(node=r"w\d(?= talks)", fault=r"(?<=ended: ).*")
    with warns("invalid_message") as caught:
        run, state = trained(job, Asynchronous(), local(2), "epochs>=20")
    message = {warning.fields["node"]: warning.fields["fault"] for warning in caught.all}
    assert message == {"w1": "short_header", "w2": "wrong_fields"}
    assert sorted(state.merged) == everything(SAMPLES, 20)
    assert run.summary["workers_lost"] == 2


def test_run_ends_if_every_worker_sends_invalid_messages() -> None:
    """The workers have no exit code, because only the hub has killed them."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        this_worker().hub.send(b"nonsense")
        return cross_entropy(outputs, targets)

    how = {"node": "w1.3", "exit_code": None}
    with warns("invalid_message"), raises(JobError, "workers_keep_dying", **how):
        trained(a_job(loss=loss), Asynchronous(), local(1))


def test_damaged_packet_is_rejected(tmp_path: Path) -> None:
    write, flag = Packet.write, tmp_path / "damaged"

    def damaged(packet: Packet, out: Any) -> int:
        size = write(packet, out)
        if not flag.exists():
            flag.touch()
            out[:40] = 255
        return size

    run, state = trained(a_job(patched(Packet, "write", damaged)), Asynchronous(), local(1), codec=Half())
    assert sorted(state.merged) == everything(SAMPLES, 2)
    assert events(run.records, UpdateRejected)[0].task == "w1:1"
    transcribe(events(run.records, UpdateRejected)[0].reason, reason=r"(?<=not a packet: ).*")


# --- NaN and infinity ----------------------------------------------------------------------------


def unsound(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum() * nan


@pytest.mark.parametrize(
    ("on", "bad"), [(local(2), nan), (fleet(2), nan), (fleet(2), inf)], ids=["local", "nan", "inf"]
)
def test_bad_numbers_end_the_run_with_their_samples(on: Place, bad: float) -> None:
    mask(task=r"\b[wm]\d:\d+", rows=r"train_data\[.*\]")
    with raises(JobError, "bad_samples") as caught:
        oddlot.fit(a_job(loss=lambda y, t: (y * bad).sum()), Asynchronous(), on, until="epochs>=1")
    batches = [sorted(order(0, 0, SAMPLES)[at : at + BATCH].tolist()) for at in (0, BATCH)]
    assert caught.fields["rows"] in batches


@BOTH
def test_bad_samples_are_skipped_with_skip_bad(on: Place) -> None:
    points, sides = rows()
    points[5] = nan
    run, state = trained(a_job(train_data=(points, sides)), Asynchronous(samples=4), on, skip_bad=True)
    assert sorted(state.merged) == everything(SAMPLES, 2)
    assert run.summary["samples_merged"] == 2 * SAMPLES - state.skipped
    assert run.summary["samples_skipped"] == state.skipped == 2 * 4
    assert all(parameter.isfinite().all() for parameter in run.model.parameters())


@pytest.mark.parametrize("strategy", [Asynchronous(), Gossip()], ids=["hub", "mesh"])
def test_run_that_skips_every_sample_fails(strategy: Strategy) -> None:
    with raises(JobError, "nothing_learned", samples=SAMPLES):
        oddlot.fit(a_job(loss=unsound), strategy, fleet(), until="epochs>=1", skip_bad=True)


def test_interrupted_run_that_skips_samples_does_not_fail() -> None:
    def stop(record: Record) -> None:
        if len(rejected) == 6:  # three for each task: some samples are skipped by now
            signal.raise_signal(signal.SIGINT)
        rejected.extend(events([record], UpdateRejected))

    rejected: list[UpdateRejected] = []
    options: dict[str, Any] = {"until": "epochs>=9", "skip_bad": True, "callbacks": [stop]}
    with pytest.raises(oddlot.Interrupted) as stopped:
        oddlot.fit(a_job(loss=unsound), Asynchronous(), fleet(), **options)
    assert stopped.value.run.summary["samples_skipped"] > 0


def test_resume_with_skip_bad_skips_the_bad_samples(tmp_path: Path) -> None:
    points, sides = rows()
    points[5] = nan
    job, options = a_job(train_data=(points, sides)), {"until": "epochs>=1", "out": tmp_path}
    with raises(JobError, "bad_samples") as caught:
        oddlot.fit(job, Asynchronous(), fleet(), **options)  # type: ignore[arg-type]
    assert 5 in caught.fields["rows"]
    run = oddlot.fit(job, Asynchronous(), fleet(), **options, resume="latest", skip_bad=True)  # type: ignore[arg-type]
    assert run.summary["samples_skipped"] == 8


@BOTH
def test_evaluation_with_infinite_loss_warns_once(on: Place, tmp_path: Path) -> None:
    huge = (torch.full((4, 2), 1e38), torch.zeros(4).long())
    job = a_job(lambda: nn.Linear(2, 2), eval_data=huge, loss=lambda y, t: (y**2).mean())
    mask(version=r"(?<=version )\d+")
    with warns("figures_without_a_number", figures=["loss"]) as caught:
        run = oddlot.fit(job, Asynchronous(), on, until="epochs>=3", out=tmp_path)
    assert len(caught.all) == 1
    assert run.loss is None
    assert json.loads((tmp_path / "summary.json").read_text())["loss"] is None
