"""Whole runs: the books, the goals, the figures, and what they leave alone."""

import errno
import logging
import os
import random
import re
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oddlot
from oddlot import (
    VCASGD,
    AdaptiveK,
    AdaptiveLoad,
    Asynchronous,
    BackupTasks,
    ByGradients,
    Deadline,
    Downpour,
    ElasticAveraging,
    FastestK,
    FederatedAveraging,
    JobError,
    Lifetime,
    Link,
    LocalSGD,
    Machine,
    ProportionalLoad,
    Quorum,
    Simulated,
    Strategy,
    Synchronous,
    UsageError,
)
from oddlot.core import words as w
from oddlot.engines.local import LocalEngine
from oddlot.strategies import BY_NAME, WRAPPERS
from tests.fits import (
    SAMPLES,
    Place,
    a_job,
    everything,
    fleet,
    local,
    merges,
    rows,
    trained,
)

pytestmark = pytest.mark.usefixtures("fork_server")

STRATEGIES = [
    *(
        Synchronous(),
        FastestK(k=1),
        AdaptiveK(switch=ByGradients(window=2, burn_in=2)),
        Asynchronous(damping=0.5),
        LocalSGD(steps=2),
    ),
    *(AdaptiveLoad(switch=ByGradients(window=2)), Quorum(LocalSGD(steps=2))),
    *(
        BackupTasks(Synchronous(), slow=1.0),
        Deadline(LocalSGD(steps=2), 0.01),
        ProportionalLoad(Synchronous()),
    ),
    *(VCASGD(), FederatedAveraging(), ElasticAveraging(steps=2), Downpour(steps=2)),
]
BOTH = pytest.mark.parametrize("on", [local(2), fleet(2)], ids=["local", "simulated"])


# --- the books -----------------------------------------------------------------------------------


def test_a_final_measurement_that_takes_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The metric waits until somebody has heard of it."""
    heard = tmp_path / "heard"

    def patient(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        while not heard.exists():
            pass
        return 1.0

    class Hears(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.write_text(record.getMessage())

    monkeypatch.setattr("oddlot.training.LONG_MEASURE_SECONDS", 0.01)
    caplog.set_level(logging.INFO, "oddlot")
    logging.getLogger("oddlot.training").addHandler(hears := Hears())
    job = replace(a_job(), evaluation=rows(4), metrics={"patience": patient})
    oddlot.fit(job, Synchronous(), local(1), until="epochs>=1")
    logging.getLogger("oddlot.training").removeHandler(hears)
    assert "the final version has been measured for 0.01 s: the run waits for that" in heard.read_text()


def test_a_measure_that_takes_a_second_is_not_called_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The hub looks up every half a second: the metric waits until it has done so twice."""
    heard, seen, next_of = tmp_path / "heard", list[None](), LocalEngine.next

    def patient(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        while not heard.exists():
            pass
        return 1.0

    def watched(self: LocalEngine, until: float) -> Any:
        message = next_of(self, until)
        if message is None and until > self.now + 1:
            seen.append(None)
        if len(seen) >= 2:
            heard.touch()
        return message

    monkeypatch.setattr(LocalEngine, "next", watched)
    caplog.set_level(logging.INFO, "oddlot")
    job = replace(a_job(), evaluation=rows(4), metrics={"patience": patient})
    oddlot.fit(job, Synchronous(), local(1), until="epochs>=1")
    assert "has been measured for" not in caplog.text


def test_every_strategy_is_tried() -> None:
    assert {type(strategy) for strategy in STRATEGIES} == {*BY_NAME.values(), *WRAPPERS.values()}


@BOTH
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
def test_every_sample_of_every_epoch_reaches_the_model_once(strategy: Strategy, on: Place) -> None:
    shards = 2 if getattr(strategy, "whole_shards", False) else 1
    run, books = trained(a_job(count=45), strategy, on, "epochs>=3", shards=shards)
    assert sorted(books.merged) == everything(45, 3)
    assert run.ended == "epochs>=3"
    assert (run.summary["samples_merged"], run.summary["epochs"]) == (135, 3)
    assert run.summary["versions"] == sum(1 for _ in merges(run.records))


@BOTH
def test_two_tasks_in_flight(on: Any) -> None:
    on = type(on)(**{**vars(on), "in_flight": 2})
    run, books = trained(a_job(), Asynchronous(), on, "epochs>=3")
    assert sorted(books.merged) == everything(SAMPLES, 3)
    held: Counter[str] = Counter()
    most = 0
    for record in run.records:
        if isinstance(record.event, w.Arrived):
            held[record.event.update.sender] -= 1
        held.update(action.task.node for action in record.actions if isinstance(action, w.Start))
        most = max([most, *held.values()])
    assert most == 2


@BOTH
def test_shards_and_a_barrier_between_epochs(on: Place) -> None:
    run, books = trained(a_job(), Asynchronous(samples=5), on, "epochs>=3", shards=4, epoch_barrier=True)
    assert sorted(books.merged) == everything(SAMPLES, 3)
    assert books.merged == sorted(books.merged, key=lambda place: place[0]), "one epoch after the other"
    spans = [span for merge in merges(run.records) for span in merge]
    assert all(start // 12 == (stop - 1) // 12 for _, start, stop in spans), "a task is of one shard"


@BOTH
def test_a_strategy_may_be_used_again(on: Place) -> None:
    """What it remembers of a run that ended in mid-round is not in the way of the next one."""
    strategy = Synchronous()
    for _ in range(2):
        trained(a_job(), strategy, on, "loss<=1000")
        assert strategy == Synchronous()
        _, books = trained(a_job(), strategy, on, "epochs>=1")
        assert sorted(books.merged) == everything(SAMPLES, 1)


# --- when a run ends, and what it tells ----------------------------------------------------------


@BOTH
def test_the_history_has_a_row_for_each_evaluation_and_ends_with_the_last_version(on: Place) -> None:
    job = a_job(evaluation=rows(), metrics={"accuracy": oddlot.accuracy})
    run, _ = trained(
        job, Synchronous(), on, "epochs>=4", evaluate_every=oddlot.goal.Every.parse("3 versions")
    )
    versions = [row["versions"] for row in run.history]
    assert versions == sorted(set(versions))
    assert versions[-1] == run.summary["versions"] >= 12
    assert run.history[-1]["accuracy"] == run.accuracy
    assert run.history[-1].keys() == {"seconds", "versions", "epochs", "dollars", "loss", "accuracy"}
    assert not run.model.training


@pytest.mark.parametrize(
    ("until", "reached"),
    [
        ("seconds>=1", lambda s: 1 <= s["seconds"] < 1.2),
        ("versions>=5", lambda s: s["versions"] == 5),
        ("epochs>=1.5", lambda s: s["epochs"] == 1.5),
        ("samples>=40", lambda s: s["samples_merged"] == 40),
        ("dollars>=0.01", lambda s: s["dollars"] == pytest.approx(0.01, rel=0.1)),
        ("loss<=0.5", lambda s: s["loss"] <= 0.5),
        ("accuracy>=0.9", lambda s: s["accuracy"] >= 0.9),
        ("accuracy>0.999 or versions>=5", lambda s: s["versions"] == 5),
    ],
)
def test_a_run_ends_at_its_goal(until: str, reached: Any) -> None:
    job = a_job(evaluation=rows(), metrics={"accuracy": oddlot.accuracy})
    machine = Machine("m", 0.01, dollars_per_hour=36.0)
    every = oddlot.goal.Every.parse("1 versions")
    run, _ = trained(job, Asynchronous(), Simulated([machine]), until, evaluate_every=every)
    assert reached(run.summary), run.summary
    assert run.ended == until.rpartition(" ")[2]


def test_without_an_evaluation_set_the_loss_is_that_of_training() -> None:
    run, _ = trained(a_job(), Asynchronous(), fleet(1), "loss<=0.5")
    assert run.loss is not None
    assert run.loss <= 0.5
    assert run.accuracy is None
    assert run.history == []


def test_machines_that_vanish_leave_nothing_behind() -> None:
    machines = [
        Machine(f"m{i}", 0.01, lifetime=Lifetime(mean_seconds=0.2), seconds_to_return=0.1) for i in range(4)
    ]
    run, books = trained(a_job(), FastestK(k=2), Simulated(machines), "epochs>=3")
    assert run.summary["workers_lost"] > 5
    assert sorted(books.merged) == everything(SAMPLES, 3)


def test_the_facts_tell_where_the_time_went() -> None:
    run, _ = trained(a_job(), Asynchronous(), local(1), "epochs>=1")
    facts = [record.event.update for record in run.records if isinstance(record.event, w.Arrived)]
    assert all(min(one.seconds[part] for part in ("down", "load", "compute", "up")) > 0 for one in facts)


def test_a_run_says_in_a_line_what_became_of_it(tmp_path: Path) -> None:
    job = a_job(evaluation=rows(), metrics={"accuracy": oddlot.accuracy})
    run = oddlot.fit(job, Asynchronous(), fleet(), until="epochs>=1", out=tmp_path)
    told = rf"Run\(accuracy=[\d.]+, loss=[\d.]+, seconds=[\d.]+, versions=6, ended='epochs>=1', folder='{tmp_path}'\)"
    assert re.fullmatch(told, repr(run))


def test_memory_that_is_not_granted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: int, __: int) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(os, "ftruncate", refuses)
    with pytest.raises(JobError, match=r"no shared memory of 0 MB to be had: File too large"):
        oddlot.fit(a_job(), Asynchronous(), local(1), until="epochs>=1")


@pytest.mark.parametrize(
    ("on", "stops_at_once"), [("simulated", False), ("simulated", True), ("local", False)]
)
def test_traffic_of_work_that_was_cancelled_counts_apart(on: str, stops_at_once: bool) -> None:
    """Each round is of another version, which is sent to everybody. The first worker may have done many alone."""

    def stop(record: w.Record) -> None:
        if isinstance(record.event, w.Cancelled):
            cancelled.append(record)
            if len(cancelled) == 2:
                signal.raise_signal(signal.SIGINT)

    cancelled: list[w.Record] = []
    machines = tuple(Machine(f"w{i}", 0.001 * 5**i, stops_at_once=stops_at_once) for i in range(3))
    place = Simulated(list(machines)) if on == "simulated" else local(3, as_if=machines)
    with pytest.raises(oddlot.Interrupted) as stopped:
        oddlot.fit(a_job(), FastestK(k=1, samples=16), place, until="epochs>=1e6", observers=[stop])
    run = stopped.value.run
    started = sum(isinstance(action, w.Start) for record in run.records for action in record.actions)
    ended = [record for record in run.records if isinstance(record.event, w.Cancelled)]
    size = 4 * (16 + 16 + 16 + 16)
    assert ended
    assert run.summary["bytes_down"] <= started * size
    arrived = [record.event.update for record in run.records if isinstance(record.event, w.Arrived)]
    assert run.summary["bytes_down"] == sum(facts.bytes_down for facts in arrived) + len(ended) * size
    assert run.summary["bytes_wasted"] >= len(ended) * size
    assert 0 < run.wasted_share == run.summary["samples_wasted"] / (16 * started)


def test_money_time_and_traffic_of_a_fleet() -> None:
    link = Link(megabits_per_second=8, latency_milliseconds=0)
    machines = [Machine(f"m{i}", 0.01, link=link, dollars_per_hour=3.6) for i in range(2)]
    run = oddlot.fit(a_job(), Synchronous(), Simulated(machines), until="epochs>=1")
    size = 4 * (16 + 16 + 16 + 16)  # four tensors, each in cache lines of 64 bytes
    assert run.summary["bytes_up"] == 6 * size
    assert run.summary["bytes_down"] == 6 * size
    assert run.summary["seconds"] == pytest.approx(3 * (0.08 + 2 * size / 1e6), rel=0.01)
    assert run.dollars == pytest.approx(2 * run.summary["seconds"] * 0.001)
    assert run.hours == pytest.approx(run.summary["seconds"] / 3600)
    assert run.wasted_share == 0


@BOTH
@pytest.mark.parametrize("fails", [False, True])
def test_the_callers_chance_and_threads_are_left_alone(on: Place, fails: bool) -> None:
    def state() -> list[Any]:
        python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - what users draw from
        return [torch.get_rng_state().tolist(), str(python), str(numpy), torch.get_num_threads()]

    torch.manual_seed(3)
    before = state()
    if fails:
        with pytest.raises(JobError):
            oddlot.fit(a_job(loss=lambda y, t: y), Asynchronous(), on, until="epochs>=1")
    else:
        oddlot.fit(a_job(), Asynchronous(), on, until="epochs>=1")
    assert state() == before


@BOTH
def test_the_version_that_met_the_goal_is_named(on: Place) -> None:
    """The final one may be a little further, and worse."""
    job = a_job(evaluation=rows(), metrics={"accuracy": oddlot.accuracy})
    run = oddlot.fit(job, Asynchronous(), on, until="accuracy>=0.8", evaluate_every="1 versions")
    at = run.summary["ended_version"]
    assert at <= run.summary["versions"]
    met = [row["versions"] for row in run.history if row["accuracy"] >= 0.8]
    assert met[0] == at
    assert oddlot.fit(job, Asynchronous(), on, until="versions>=4").summary["ended_version"] == 4


# --- what cannot be ------------------------------------------------------------------------------


class NoDataclass:
    on = Synchronous.on


class Lengthless:
    """A data set whose length fails."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        if not self.size:
            raise OSError("the disk is gone")
        return self.size

    def __getitem__(self, _: int) -> float:
        return 1.0


@pytest.mark.parametrize(("size", "told"), [(0, "the disk is gone"), (-1, "should return >= 0")])
@pytest.mark.parametrize("where", ["data", "evaluation"])
def test_a_data_set_without_a_length_is_the_job_s_fault(size: int, told: str, where: str) -> None:
    changes: Any = {where: Lengthless(size)}
    with pytest.raises(JobError, match=rf"(?s)does not tell its length.*{told}"):
        oddlot.fit(a_job(**changes), Synchronous(), fleet(), until="epochs>=1")


def test_a_goal_that_never_comes_is_refused() -> None:
    for on in (local(1), fleet(1)):
        with pytest.raises(UsageError, match=r"until = 'dollars>=1' never comes: no machine has a price"):
            oddlot.fit(a_job(), Synchronous(), on, until="dollars>=1")
    with pytest.raises(UsageError, match=r"never comes: with maths=False .* nothing is trained or measured"):
        oddlot.fit(a_job(), Synchronous(), fleet(1, maths=False), until="loss<=1")
    oddlot.fit(a_job(), Synchronous(), fleet(1), until="dollars>=1 or epochs>=1")


@pytest.mark.parametrize(
    ("changes", "strategy", "options", "told"),
    [
        ({"data": (torch.zeros(0, 2),)}, Synchronous(), {}, "data is empty"),
        ({"evaluation": []}, Synchronous(), {}, "the evaluation set is empty"),
        ({}, Synchronous(samples=64), {}, "strategy.samples = 64 is more than the samples: there are 48"),
        (
            {},
            Deadline(Synchronous(samples=64)),
            {},
            "strategy.inner.samples = 64 is more than the samples: there are 48",
        ),
        ({}, AdaptiveLoad(((1, 64, 1.0),)), {}, "strategy.table = 64 is more than the samples: there are 48"),
        ({}, AdaptiveLoad(loads=(8, 64)), {}, "strategy.loads = 64 is more than the samples: there are 48"),
        ({"batch": 64}, Synchronous(), {}, "job.batch = 64 is more than the samples: there are 48"),
        ({}, Synchronous(), {"on": local(49)}, "workers = 49 is more than the samples: there are 48"),
        ({}, FastestK(k=3), {}, "k = 3 results of 2 workers: lower k or add workers"),
        ({}, Synchronous(), {"until": ""}, "until says when the run ends"),
        ({}, Synchronous(), {"until": "lss<=1"}, "did you mean `loss`?"),
        (
            {"metrics": {"accuracy": oddlot.accuracy}},
            Synchronous(),
            {},
            "metrics accuracy need Job(evaluation=",
        ),
        ({}, Synchronous(), {"evaluate_every": "often"}, "'often' is not a rhythm"),
        ({"device": "foo"}, Synchronous(), {}, "device = 'foo' is none: there are auto"),
        ({"device": "cuda:7"}, Synchronous(), {}, "device = 'cuda:7' is not there"),
        ({}, Synchronous(), {"seed": -1}, "seed = -1 must be a whole number from 0"),
        ({}, Synchronous(), {"seed": 2**32}, "seed = 4294967296 must be"),
        ({}, Synchronous(), {"resume": True, "force": True}, "say one of them"),
        ({}, Synchronous(), {"shards": 0}, "shards = 0 must be at least 1"),
        ({}, Synchronous, {}, "strategy = Synchronous is a class: pass one of it, Synchronous(...)"),
        ({}, "synchronous", {}, "'synchronous' is no strategy: pass one, such as oddlot.Synchronous()"),
        ({}, NoDataclass(), {}, "is no dataclass: put @dataclass before its class"),
        ({}, Synchronous(), {"on": 2}, "on = 2 is no place: pass oddlot.Local(workers=2)"),
        ({}, Synchronous(), {"on": oddlot.Local}, "is no place: pass oddlot.Local(workers=2)"),
        (
            {"evaluation": rows(), "metrics": {"top": oddlot.accuracy}},
            Synchronous(),
            {"until": "top>=98"},
            "until = 'top>=98' never comes: top is a share, from 0 to 1",
        ),
        ({}, Synchronous(), {"until": 3}, "until = 3 must be a text"),
        ({}, Synchronous(), {"seed": "a"}, "seed = 'a' must be a whole number"),
        ({}, Synchronous(), {"codec": "bf16"}, "codec = 'bf16' is no codec: pass oddlot.Plain()"),
        ({}, Synchronous(), {"codec": oddlot.Half}, "is no codec"),
        ({}, Synchronous(), {"seed": True}, "seed = True must be a whole number"),
        ({}, Synchronous(), {"out": 3}, "out = 3 must be a folder's path"),
        ({}, Synchronous(), {"out": None, "resume": True}, "name it with out="),
        ({}, Synchronous(), {"observers": print}, "must be a list of functions"),
        ({}, Synchronous(), {"about": {"x": print}}, "must be plain data that JSON has"),
        (
            {"evaluation": [1], "metrics": {"epochs": len}},
            Synchronous(),
            {},
            "metrics: epochs is a figure of every run: take another name",
        ),
        ({}, Synchronous(), {"checkpoint_every": 3}, "checkpoint_every = 3 is not a rhythm"),
        ({}, Synchronous(), {"shards": 25}, "shards = 25 of 48 samples: a shard would have one alone"),
        ({}, Synchronous(), {"resume": "no"}, "resume = 'no' must be True or False"),
        ({}, Synchronous(), {"about": 3}, "about = 3 must be a dict"),
        (
            {"data": [[1.0]] * 2},
            Synchronous(),
            {},
            "there are 2; lower it; a list is a data set of its items",
        ),
        ({"data": ([1.0], [2.0])}, Synchronous(), {}, "and a tuple of arrays or tensors one of their rows"),
        ({}, Synchronous(), {"shards": 49}, "shards = 49 is more than the samples: there are 48"),
    ],
)
def test_what_cannot_be_is_told_before_anything_starts(
    changes: Any,
    strategy: Any,
    options: dict[str, Any],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("oddlot.engines.on_local.Nursery", None)
    options = {"on": local(2), "until": "epochs>=1", "out": tmp_path / "run", **options}
    with pytest.raises(UsageError) as error:
        oddlot.fit(a_job(**changes), strategy, **options)
    assert told in str(error.value)
    assert error.value.exit_code == 2
    assert not (tmp_path / "run").exists()
