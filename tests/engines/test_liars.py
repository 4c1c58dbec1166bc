"""Workers that talk nonsense, and numbers that are bad."""

import json
import os
import re
import signal
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import oddlot
from oddlot import Asynchronous, Half, JobError
from oddlot.core import words as w
from oddlot.core.plain import to_plain
from oddlot.engines import worker as worker_module
from oddlot.engines.messages import Say, encode, read_evaluated
from oddlot.train.data import order
from oddlot.wire.codec import Packet
from oddlot.wire.framing import FrameError, pack
from tests.fits import (
    BATCH,
    SAMPLES,
    Place,
    a_job,
    everything,
    fleet,
    local,
    net,
    rows,
    this_worker,
    trained,
)

pytestmark = pytest.mark.usefixtures("fork_server")

HUB = os.getpid()
BOTH = pytest.mark.parametrize("on", [local(2), fleet(2)], ids=["local", "simulated"])


# --- liars ---------------------------------------------------------------------------------------


def once(flag: Path) -> bool:
    """True for one process alone."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def says(frame: bytes, flag: Path) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss that has one of the workers say this to the hub."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if once(flag):
            this_worker().hub.send(frame)
        return cross_entropy(outputs, targets)

    return loss


def lying(lie: dict[str, Any], flag: Path) -> Callable[[], nn.Module]:
    """A model factory that makes one of the workers lie once about what it has done."""

    def model() -> nn.Module:
        def plain(facts: w.Facts) -> Any:
            return to_plain(facts) | (lie if once(flag) else {})

        if os.getpid() != HUB:
            patch.object(worker_module, "to_plain", plain).start()
        return net()

    return model


NONSENSE = {
    "garbage": b"garbage",
    "a damaged frame": encode(Say.READY)[:-1],
    "too long": pack(Say.CANCELLED, b" " * 100_000),
    "an unknown kind": pack(99, b"{}"),
    "a hub's word": encode(Say.TASK, task={}),
    "another's word": encode(Say.EXITED, pid=1, code=0),
    "no JSON": pack(Say.DONE, b"\xff{"),
    "no dictionary": pack(Say.DONE, b"[1]"),
    "deep": pack(Say.DONE, b"[" * 60_000),
    "ready again": encode(Say.READY),
    "no facts": encode(Say.DONE),
    "facts that are text": encode(Say.DONE, facts="w1:1"),
    "cancelled what it has not": encode(Say.CANCELLED, task="w1:999"),
    "cancelled nothing": encode(Say.CANCELLED, task=[1]),
    "cancelled with bytes that cannot be": encode(Say.CANCELLED, task="w1:1", bytes_down=-5),
    "evaluated unasked": encode(Say.EVALUATED, version=0, metrics={}),
    "evaluated nothing": encode(Say.EVALUATED, version=[0], metrics={}),
    "evaluated to nothing": encode(Say.EVALUATED, version=0, metrics={"a": None}),
}
LIES: dict[str, dict[str, Any]] = {
    "an unknown word": {"colour": "red"},
    "a task that was never given": {"id": "w1:999"},
    "another's facts": {"sender": "w9"},
    "no name": {"id": ["w1:1"]},
    "fewer than none": {"samples": -1},
    "half a sample": {"samples": 0.5},
    "many": {"bytes_up": "1e999"},
    "no kind": {"kind": [1]},
    "no time": {"seconds": {"up": nan}},
    "an infinite loss": {"loss": inf},
}


@pytest.mark.parametrize("what", [*NONSENSE, *LIES])
def test_a_worker_that_talks_nonsense_is_ended_and_the_run_goes_on(tmp_path: Path, what: str) -> None:
    said = tmp_path / "said"
    job = a_job(loss=says(NONSENSE[what], said)) if what in NONSENSE else a_job(lying(LIES[what], said))
    with pytest.warns(UserWarning, match="talks nonsense and is ended"):
        run, books = trained(job, Asynchronous(), local(2))
    assert sorted(books.merged) == everything(SAMPLES, 2)
    assert run.summary["workers_lost"] == 1


def test_workers_of_whom_each_talks_nonsense_end_the_run() -> None:
    """Nobody has killed them but the hub, for that."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        this_worker().hub.send(b"nonsense")
        return cross_entropy(outputs, targets)

    told = r"3 processes in a row died .* w1\.3, was ended by SIGKILL: look for what ends them"
    with pytest.warns(UserWarning, match="talks nonsense"), pytest.raises(JobError, match=told):
        trained(a_job(loss=loss), Asynchronous(), local(1))


@pytest.mark.parametrize("lie", [{"samples": 0}, {"samples": 9}, {"based_on": 77}, {"kind": "delta"}])
def test_facts_that_lie_are_refused(tmp_path: Path, lie: dict[str, Any]) -> None:
    run, books = trained(a_job(lying(lie, tmp_path / "lied")), Asynchronous(), local(2))
    assert sorted(books.merged) == everything(SAMPLES, 2)
    (refused,) = (record.event for record in run.records if isinstance(record.event, w.Refused))
    assert refused.task in refused.reason


@pytest.mark.parametrize("told", [{"version": [0], "metrics": {}}, {"version": 0, "metrics": {"a": nan}}, {}])
def test_metrics_that_cannot_be_are_not_believed(told: dict[str, Any]) -> None:
    with pytest.raises(FrameError):
        read_evaluated(told)


def test_a_damaged_packet_is_refused(tmp_path: Path) -> None:
    def model() -> nn.Module:
        write = Packet.write

        def damaged(packet: Packet, out: Any) -> int:
            size = write(packet, out)
            if once(tmp_path / "damaged"):
                out[:40] = 255
            return size

        if os.getpid() != HUB:
            patch.object(Packet, "write", damaged).start()
        return net()

    run, books = trained(a_job(model), Asynchronous(), local(2), codec=Half())
    assert sorted(books.merged) == everything(SAMPLES, 2)
    (refused,) = (record.event for record in run.records if isinstance(record.event, w.Refused))
    assert "not a packet" in refused.reason


# --- bad numbers ---------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("bad", [nan, inf])
def test_bad_numbers_end_the_run_and_are_told(on: Place, bad: float) -> None:
    with pytest.raises(JobError) as error:
        oddlot.fit(a_job(loss=lambda y, t: (y * bad).sum()), Asynchronous(), on, until="epochs>=1")
    told = str(error.value)
    batches = [sorted(order(0, 0, SAMPLES)[at : at + BATCH].tolist()) for at in (0, BATCH)]
    assert told.startswith("some samples gave bad numbers 3 times")
    assert any(told.endswith(f"among data{batch}") for batch in batches), told
    assert re.search(r"the last time in task \w+:\d", told)
    assert "not finite in 0.weight (10 of 10)" in told
    assert "skip_bad=True" in told


@BOTH
def test_bad_samples_are_skipped_and_counted_if_wished(on: Place) -> None:
    points, sides = rows()
    points[5] = nan
    run, books = trained(a_job(data=(points, sides)), Asynchronous(samples=4), on, skip_bad=True)
    assert sorted(books.merged) == everything(SAMPLES, 2)
    assert run.summary["samples_merged"] == 2 * SAMPLES - books.skipped
    assert run.summary["samples_skipped"] == books.skipped == 2 * 4
    assert all(parameter.isfinite().all() for parameter in run.model.parameters())


@BOTH
def test_a_run_whose_every_sample_is_skipped_has_failed(on: Place) -> None:
    job = a_job(loss=lambda y, t: (y * nan).sum())
    with pytest.raises(JobError, match=r"learned nothing: all 48 samples .* since .*not finite in 0.weight"):
        oddlot.fit(job, Asynchronous(), on, until="epochs>=1", skip_bad=True)


def test_one_that_was_stopped_has_not() -> None:
    def stop(record: w.Record) -> None:
        if len(refused) == 6:  # three times a sample: some have been skipped by then
            signal.raise_signal(signal.SIGINT)
        refused.extend([record] if isinstance(record.event, w.Refused) else [])

    refused: list[w.Record] = []
    job = a_job(loss=lambda y, t: (y * nan).sum())
    with pytest.raises(oddlot.Interrupted) as stopped:
        oddlot.fit(job, Asynchronous(), fleet(), until="epochs>=9", skip_bad=True, observers=[stop])
    assert stopped.value.run.summary["samples_skipped"] > 0


def test_a_resumed_run_may_skip_what_had_ended_it(tmp_path: Path) -> None:
    points, sides = rows()
    points[5] = nan
    job = a_job(data=(points, sides))
    with pytest.raises(JobError, match="pass skip_bad=True"):
        oddlot.fit(job, Asynchronous(), fleet(), until="epochs>=1", out=tmp_path)
    run = oddlot.fit(
        job, Asynchronous(), fleet(), until="epochs>=1", out=tmp_path, resume=True, skip_bad=True
    )
    assert run.summary["samples_skipped"] == 8


@BOTH
def test_an_evaluation_whose_loss_overflows_is_not_in_the_way(on: Place, tmp_path: Path) -> None:
    huge = (torch.full((4, 2), 1e38), torch.zeros(4).long())
    job = a_job(lambda: nn.Linear(2, 2), evaluation=huge, loss=lambda y, t: (y**2).mean())
    with pytest.warns(
        UserWarning, match=r"^loss of version \d+ on the evaluation set: NaN or infinity"
    ) as told:
        run = oddlot.fit(job, Asynchronous(), on, until="epochs>=3", out=tmp_path)
    assert len(told) == 1
    assert run.loss is None
    assert json.loads((tmp_path / "summary.json").read_text())["loss"] is None
