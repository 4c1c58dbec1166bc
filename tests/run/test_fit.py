"""Complete runs: sample accounting, goals, summaries, and the process's own state."""

import errno
import json
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import oddlot
from oddlot import (
    VCASGD,
    AdaptiveK,
    AdaptiveLoad,
    Asynchronous,
    BackupTasks,
    Deadline,
    Downpour,
    ElasticAveraging,
    FastestK,
    FederatedAveraging,
    Groups,
    JobError,
    Local,
    LocalSGD,
    Machine,
    ProportionalLoad,
    Quorum,
    Simulated,
    Strategy,
    Synchronous,
    UsageError,
)
from oddlot.core.commands import Cancel, Command, Start
from oddlot.core.events import Arrived, Cancelled, Event
from oddlot.core.records import Record
from oddlot.core.strategy import View
from oddlot.core.support.errors import ProtocolError
from oddlot.history.best_metric import BestMetric
from oddlot.history.goals import Every
from oddlot.machines import Link
from oddlot.model.combine import Combine, Gate
from oddlot.report import progress_line
from oddlot.run.config import RunConfig, RunSettings
from oddlot.strategies import ByGradients
from oddlot.strategies.registry import BY_NAME, WRAPPERS
from oddlot.wire.codec import Codec
from tests.engines.log import events, updates
from tests.fits import SAMPLES, Place, a_job, everything, fleet, local, merges, rows, trained
from tests.transcripts import mask, raises, transcribe, warns

pytestmark = pytest.mark.usefixtures("fork_server")

HUB = os.getpid()
SIZE = 4 * 64 + 64
"""Bytes of a block: four tensors, each in cache lines, and a line that marks those without a gradient."""

STRATEGIES = [
    Synchronous(),
    FastestK(k=1),
    AdaptiveK(switch=ByGradients(window=2, burn_in=2)),
    Asynchronous(damping=0.5),
    LocalSGD(steps=2),
    AdaptiveLoad(switch=ByGradients(window=2)),
    Quorum(LocalSGD(steps=2)),
    BackupTasks(Synchronous(), slow=1.0),
    Deadline(LocalSGD(steps=2), 0.01),
    ProportionalLoad(Synchronous()),
    Groups(Synchronous()),
    VCASGD(),
    FederatedAveraging(),
    ElasticAveraging(steps=2),
    Downpour(steps=2),
]
REAL = FastestK, LocalSGD, ElasticAveraging, Groups
"""Strategies that also run on local workers. Together, they cancel tasks and use each kind of update."""
BOTH = pytest.mark.parametrize("on", [local(2), fleet(2)], ids=["local", "simulated"])


# --- sample accounting -----------------------------------------------------------------------------


def test_long_final_evaluation_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The metric waits until the message is logged. The hub wakes up every 0.5 s, within the limit of 0.7 s."""
    heard, seen, message = tmp_path / "heard", list[float](), list[tuple[float, logging.LogRecord]]()

    def patient(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        while not heard.exists():
            pass
        return 1.0

    class Hears(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message.append((time.monotonic(), record))
            heard.touch()

    monkeypatch.setattr("oddlot.run.training.LONG_MEASURE_SECONDS", 0.7)
    caplog.set_level(logging.INFO, "oddlot.run.training")
    monkeypatch.setattr(logging.getLogger("oddlot.run.training"), "handlers", [Hears()])
    job = a_job(eval_data=rows(4), metrics={"patience": patient})
    callbacks = [lambda _: seen.append(time.monotonic())]
    oddlot.fit(job, Synchronous(), local(1), until="epochs>=1", callbacks=callbacks)
    ((at, record),) = message
    assert at - max(each for each in seen if each < at) >= 0.7
    assert record.args == (0.7,)
    transcribe(record.getMessage())


def test_every_strategy_is_covered() -> None:
    on_meshes = {kind for kind in BY_NAME.values() if kind().traits(1).mesh}  # see tests/run/test_mesh.py
    assert {type(strategy) for strategy in STRATEGIES} | on_meshes == {*BY_NAME.values(), *WRAPPERS.values()}


@pytest.mark.parametrize(
    ("strategy", "on"),
    [(s, fleet(2)) for s in STRATEGIES] + [(s, local(2)) for s in STRATEGIES if isinstance(s, REAL)],
    ids=lambda part: type(part).__name__,
)
def test_every_sample_is_merged_once_per_epoch(strategy: Strategy, on: Place) -> None:
    shards = 2 if strategy.traits(1).shard_tasks else 1
    run, state = trained(a_job(count=45), strategy, on, "epochs>=3", shards=shards)
    assert sorted(state.merged) == everything(45, 3)
    assert run.ended == "epochs>=3"
    assert (run.summary["samples_merged"], run.summary["epochs"]) == (135, 3)
    assert run.summary["versions"] == sum(1 for _ in merges(run.records))


@BOTH
def test_worker_runs_two_tasks_in_flight(on: Any) -> None:
    """With two tasks in flight, updates of local workers have the seconds of each stage."""
    run, state = trained(a_job(), Asynchronous(), replace(on, in_flight=2), "epochs>=3")
    assert sorted(state.merged) == everything(SAMPLES, 3)
    held, most = Counter[str](), 0
    for record in run.records:
        if isinstance(record.event, Arrived):
            held[record.event.update.sender] -= 1
        held.update(action.task.node for action in record.actions if isinstance(action, Start))
        most = max([most, *held.values()])
    assert most == 2
    if isinstance(on, Local):
        assert all(min(facts.seconds.values()) > 0 for facts in updates(run.records))
        assert updates(run.records)[0].seconds.keys() == {"down", "load", "compute", "up"}


def test_epoch_barrier_keeps_epochs_in_order() -> None:
    run, state = trained(
        a_job(), Asynchronous(samples=5), fleet(2), "epochs>=3", shards=4, epoch_barrier=True
    )
    assert sorted(state.merged) == everything(SAMPLES, 3)
    assert state.merged == sorted(state.merged, key=lambda place: place[0]), "one epoch after the other"
    spans = [span for merge in merges(run.records) for span in merge]
    assert all(start // 12 == (stop - 1) // 12 for _, start, stop in spans), "a task is of one shard"


def test_strategy_can_be_reused() -> None:
    """The state of a run that ended during a round does not affect the next run."""
    strategy = Synchronous()
    for _ in range(2):
        trained(a_job(), strategy, fleet(2), "loss<=1000")
        assert strategy == Synchronous()
        _, state = trained(a_job(), strategy, fleet(2), "epochs>=1")
        assert sorted(state.merged) == everything(SAMPLES, 1)


# --- the end of a run, and its summary -------------------------------------------------------------


@BOTH
def test_history_has_one_row_per_evaluation(
    on: Place,
) -> None:
    """The history has one row per evaluation. The final version may be a little later, and worse."""
    job = a_job(eval_data=rows(), metrics={"accuracy": oddlot.accuracy})
    every = oddlot.history.goals.Every(1, "versions")
    run, _ = trained(job, Asynchronous(), on, "accuracy>=0.8", evaluate_every=every)
    versions = [row["versions"] for row in run.history]
    assert versions == sorted(set(versions))
    assert versions[-1] == run.summary["versions"] >= run.summary["ended_version"]
    met = [row["versions"] for row in run.history if row["accuracy"] >= 0.8]
    assert met[0] == run.summary["ended_version"]
    assert versions[-1] == run.summary["evaluated_version"]
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
def test_run_ends_at_its_goal(until: str, reached: Any) -> None:
    job = a_job(eval_data=rows(), metrics={"accuracy": oddlot.accuracy})
    machine = Machine("m", 0.01, dollars_per_hour=36.0)
    every = oddlot.history.goals.Every.parse("1 versions")
    run, _ = trained(job, Asynchronous(), Simulated([machine]), until, evaluate_every=every)
    assert reached(run.summary), run.summary
    assert run.ended == until.rpartition(" ")[2]
    assert run.summary["ended_version"] == run.summary["versions"]


def test_loss_without_eval_data_is_the_training_loss() -> None:
    run, _ = trained(a_job(), Asynchronous(), fleet(1), "loss<=0.5")
    assert run.loss is not None
    assert run.loss <= 0.5
    assert run.accuracy is None
    assert run.history == []


def test_repr_summarizes_the_run(tmp_path: Path) -> None:
    job = a_job(eval_data=rows(), metrics={"accuracy": oddlot.accuracy})
    run = oddlot.fit(job, Asynchronous(), fleet(), until="epochs>=1", out=tmp_path)
    transcribe(repr(run), accuracy=r"(?<=accuracy=)[\d.]+", loss=r"(?<=loss=)[\d.]+")


def test_missing_shared_memory_raises_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def rejects(_: int, __: int) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(os, "ftruncate", rejects)
    with raises(JobError, "no_shared_memory", reason="File too large"):
        oddlot.fit(a_job(), Asynchronous(), local(1), until="epochs>=1")


@pytest.mark.parametrize(
    ("on", "stops_at_once"), [("simulated", False), ("simulated", True), ("local", False)]
)
def test_cancelled_tasks_count_as_wasted_traffic(on: str, stops_at_once: bool) -> None:
    """Every worker receives the new version of each round. The first worker may complete many rounds alone."""

    def stop(record: Record) -> None:
        if isinstance(record.event, Cancelled):
            cancelled.append(record)
            if len(cancelled) == 2:
                signal.raise_signal(signal.SIGINT)

    cancelled: list[Record] = []
    machines = tuple(Machine(f"w{i}", 0.001 * 5**i, stops_at_once=stops_at_once) for i in range(3))
    place = Simulated(list(machines)) if on == "simulated" else local(3, as_if=machines)
    with pytest.raises(oddlot.Interrupted) as stopped:
        oddlot.fit(a_job(), FastestK(k=1, samples=16), place, until="epochs>=1e6", callbacks=[stop])
    run = stopped.value.run
    started = sum(isinstance(action, Start) for record in run.records for action in record.actions)
    ended = events(run.records, Cancelled)
    assert ended
    assert run.summary["bytes_down"] <= started * SIZE
    brought = sum(facts.bytes_down for facts in updates(run.records))
    assert run.summary["bytes_down"] == brought + len(ended) * SIZE
    assert run.summary["bytes_wasted"] >= len(ended) * SIZE
    assert 0 < run.wasted_share == run.summary["samples_wasted"] / (16 * started)


def test_summary_has_cost_time_and_traffic() -> None:
    link = Link(megabits_per_second=8, latency_milliseconds=0)
    machines = [Machine(f"m{i}", 0.01, link=link, dollars_per_hour=3.6) for i in range(2)]
    run = oddlot.fit(a_job(), Synchronous(), Simulated(machines), until="epochs>=1")
    assert run.summary["bytes_up"] == 6 * SIZE
    assert run.summary["bytes_down"] == 6 * SIZE
    assert run.summary["seconds"] == pytest.approx(3 * (0.08 + 2 * SIZE / 1e6), rel=0.01)
    assert run.dollars == pytest.approx(2 * run.summary["seconds"] * 0.001)
    assert run.hours == pytest.approx(run.summary["seconds"] / 3600)
    assert run.wasted_share == 0


@pytest.mark.parametrize(("on", "fails"), [(local(2), True), (fleet(2), True), (fleet(2), False)])
def test_caller_random_state_and_threads_are_unchanged(on: Place, fails: bool) -> None:
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


# --- invalid settings and jobs ---------------------------------------------------------------------


class NoDataclass(Strategy):
    on = Synchronous.on


@dataclass
class Impossible(Strategy):
    """A strategy that returns an invalid command."""

    def on(self, event: Event, view: View) -> Iterable[Command]:
        yield Cancel("m0:1")


def test_strategy_that_breaks_the_protocol_ends_the_run() -> None:
    with raises(ProtocolError, "no_such_task", task="m0:1"):
        oddlot.fit(a_job(), Impossible(), fleet(1), until="epochs>=1")


class Lengthless:
    """A dataset that raises an error when its length is 0."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        if not self.size:
            raise OSError("the disk is gone")
        return self.size

    def __getitem__(self, _: int) -> float:
        return 1.0


@pytest.mark.parametrize(("size", "reason"), [(0, "the disk is gone"), (-1, "should return >= 0")])
@pytest.mark.parametrize("where", ["train_data", "eval_data"])
def test_dataset_without_length_raises_user_code_failed(size: int, reason: str, where: str) -> None:
    changes: Any = {where: Lengthless(size)}
    with raises(JobError, "user_code_failed") as caught:
        oddlot.fit(a_job(**changes), Synchronous(), fleet(), until="epochs>=1")
    assert {"train_data": "data", "eval_data": "the evaluation set"}[where] in caught.fields["where"]
    assert reason in caught.fields["reason"]


def test_unreachable_goal_is_rejected() -> None:
    for on in (local(1), fleet(1)):
        with raises(UsageError, "goal_without_price", given="dollars>=1"):
            oddlot.fit(a_job(), Synchronous(), on, until="dollars>=1")
    with raises(UsageError, "goal_without_compute", given="loss<=1"):
        oddlot.fit(a_job(), Synchronous(), fleet(1, computes=False), until="loss<=1")
    oddlot.fit(a_job(), Synchronous(), fleet(1), until="dollars>=1 or epochs>=1")


Told = tuple[str, dict[str, Any]]
"""Code of an error, and some of its fields."""


def too_few(name: str, given: int, samples: int = SAMPLES) -> Told:
    return "too_few_samples", {"name": name, "given": given, "samples": samples}


def invalid(name: str, given: Any) -> Told:
    return "invalid_value", {"name": name, "given": given}


TOP = {"eval_data": rows(), "metrics": {"top": oddlot.accuracy}}
OF_THE_JOB: dict[str, tuple[dict[str, Any], Told]] = {
    "no data": ({"train_data": (torch.zeros(0, 2),)}, ("empty_data", {"name": "data"})),
    "no evaluation": ({"eval_data": []}, ("empty_data", {"name": "the evaluation set"})),
    "batch": ({"batch_size": 64}, too_few("job.batch_size", 64)),
    "metrics": ({"metrics": {"top": len}}, ("no_evaluation_set", {"metrics": ["top"]})),
    "device": ({"device": "foo"}, ("unknown_device", {"given": "foo"})),
    "no device": ({"device": "cuda:7"}, ("missing_device", {"given": "cuda:7"})),
    "figure": ({"eval_data": [1], "metrics": {"epochs": len}}, ("name_taken", {"names": ["epochs"]})),
    "list": ({"train_data": [[1.0]] * 2}, too_few("job.batch_size", 8, samples=2)),
    "tuple": ({"train_data": ([1.0], [2.0])}, too_few("job.batch_size", 8, samples=2)),
}
OF_THE_STRATEGY: dict[str, tuple[Any, Told]] = {
    "samples": (Synchronous(samples=64), too_few("strategy.samples", 64)),
    "inner": (Deadline(Synchronous(samples=64)), too_few("strategy.inner.samples", 64)),
    "table": (AdaptiveLoad(((1, 64, 1.0),)), too_few("strategy.table", 64)),
    "loads": (AdaptiveLoad(loads=(8, 64)), too_few("strategy.loads", 64)),
    "k": (FastestK(k=3), ("too_few_workers", {"k": 3, "workers": 2})),
    "class": (Synchronous, ("class_given", {"given": "Synchronous"})),
    "text": ("asynchronos", ("unknown_name", {"kind": "strategy", "nearest": "asynchronous"})),
    "no dataclass": (NoDataclass(), ("no_dataclass", {"given": "NoDataclass"})),
}
OF_THE_RUN: dict[str, tuple[dict[str, Any], Told]] = {
    "workers": ({"engine": local(49)}, too_few("workers", 49)),
    "no until": ({"until": ""}, ("missing_setting", {"name": "until"})),
    "goal": ({"epochs": 3}, ("unknown_name", {"given": "epochs", "nearest": None})),
    "observers": ({"observers": [print]}, ("unknown_name", {"given": "observers", "nearest": None})),
    "typo": ({"call_backs": [print]}, ("unknown_name", {"given": "call_backs", "nearest": "callbacks"})),
    "other engine": ({"engine": "rai"}, ("unknown_name", {"kind": "engine", "nearest": "ray"})),
    "unknown figure": ({"until": "lss<=1"}, ("unknown_name", {"given": "lss", "nearest": "loss"})),
    "share": ({"until": "top>=98"}, ("goal_beyond_share", {"given": "top>=98", "figure": "top"})),
    "both": ({"resume": "latest", "force": True}, ("resume_and_force", {})),
    "no folder": ({"out": None, "resume": "latest"}, ("missing_setting", {"name": "out"})),
    "shards": ({"shards": 49}, too_few("shards", 49)),
    "shard": ({"shards": 25}, ("shard_of_one_sample", {"shards": 25, "samples": SAMPLES})),
    "functions": ({"about": {"x": print}}, ("no_plain_data", {})),
}
INVALID: list[tuple[str, Any]] = [
    ("until", 3),
    ("evaluate_every", "often"),
    ("checkpoint_every", 3),
    ("seed", -1),
    ("seed", 2**32),
    ("seed", "a"),
    ("seed", True),
    ("resume", "no"),
    ("resume", True),
    ("resume", False),
    ("out", 3),
    ("shards", 0),
    ("engine", 2),
    ("engine", oddlot.Local),
    ("codec", 3),
    ("codec", oddlot.codecs.Half),
    ("callbacks", print),
    ("callbacks", [oddlot.Callback]),
    ("about", 3),
]


@pytest.mark.parametrize(
    ("changes", "strategy", "options", "message"),
    [
        *((changes, Synchronous(), {}, message) for changes, message in OF_THE_JOB.values()),
        *(({}, strategy, {}, message) for strategy, message in OF_THE_STRATEGY.values()),
        *((TOP, Synchronous(), options, message) for options, message in OF_THE_RUN.values()),
        *(({}, Synchronous(), {name: given}, invalid(name, given)) for name, given in INVALID),
    ],
    ids=[*OF_THE_JOB, *OF_THE_STRATEGY, *OF_THE_RUN, *(f"{name}={given}" for name, given in INVALID)],
)
def test_invalid_settings_fail_before_the_run(
    changes: Any,
    strategy: Any,
    options: dict[str, Any],
    message: Told,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("oddlot.engines.local.config.ForkClient", None)
    options = {"engine": local(2), "until": "epochs>=1", "out": tmp_path / "run", **options}
    mask(devices=r"(?<=is not there: ).*")
    with raises(UsageError, message[0], **message[1]):
        oddlot.fit(a_job(**changes), strategy, **options)
    assert not (tmp_path / "run").exists()


# --- the process's own state ---------------------------------------------------------------------


class Flags:
    """Stand-in for a module's flag, such as PIL's LOAD_TRUNCATED_IMAGES."""

    loads_truncated = False


@pytest.mark.parametrize("on", [local(1), fleet(1)], ids=["local", "simulated"])
def test_script_defaults_and_worker_init_reach_every_worker(
    on: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers and the evaluator get PyTorch's default dtype and device automatically.

    `worker_init` sets everything else.
    """
    monkeypatch.setattr(Flags, "loads_truncated", False)

    def init() -> None:
        Flags.loads_truncated = True

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        assert Flags.loads_truncated
        assert (torch.get_default_dtype(), torch.get_default_device().type) == (torch.float64, "meta")
        loss: torch.Tensor = nn.functional.cross_entropy(model(batch[0].double()), batch[1])
        return loss

    def model() -> nn.Module:
        assert os.getpid() == HUB or Flags.loads_truncated
        return nn.Linear(2, 2, device="cpu")

    job = a_job(model, loss=None, training_step=step, worker_init=init, eval_data=rows())
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        run = oddlot.fit(job, LocalSGD(steps=2), on, until="epochs>=1")
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert run.model.get_parameter("weight").dtype == torch.float64
    assert run.loss is not None
    assert 0 < run.loss < 1


def test_module_that_calls_fit_on_import_ends_the_run(tmp_path: Path) -> None:
    """A module with an unguarded `fit` would start workers endlessly."""
    (tmp_path / "eager.py").write_text("import oddlot\noddlot.fit(None, 'synchronous')")

    def init() -> None:
        sys.path.append(str(tmp_path))
        import_module("eager")

    with raises(JobError, "fit_during_import", module="eager", line=2):
        oddlot.fit(a_job(worker_init=init), "synchronous", local(2), until="epochs>=1", quiet=True)


def test_extra_state_warns_and_is_not_saved(tmp_path: Path) -> None:
    class Counting(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"calls": 1}

        def set_extra_state(self, state: Any) -> None:
            pass

    with warns("extra_state", modules=["1"]):
        oddlot.fit(
            a_job(lambda: nn.Sequential(nn.Linear(2, 2), Counting(2, 2))),
            Synchronous(),
            fleet(),
            until="epochs>=1",
            out=tmp_path / "run",
        )
    assert load_file(tmp_path / "run" / "model.safetensors").keys() == {
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    }


def test_names_select_default_strategies_and_engines(tmp_path: Path) -> None:
    oddlot.fit(a_job(), "local_sgd", "local", until="versions>=1", out=tmp_path)
    about = json.loads((tmp_path / "run.json").read_text())
    assert (about["strategy"].partition("(")[0], about["engine"]["kind"]) == ("LocalSGD", "local")


def test_lr_belongs_to_the_optimizer() -> None:
    with raises(UsageError, "unknown_name", given="lr", nearest="optimizer"):
        a_job(lr=0.1)


def test_progress_lines_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_line, "SECONDS_BETWEEN_PROGRESS", 0.0)
    oddlot.fit(a_job(), "synchronous", fleet(1), until="epochs>=2")
    *_, last_but_one, last = capsys.readouterr().err.splitlines()
    assert "epoch 2.0" in last != last_but_one
    oddlot.fit(a_job(), "synchronous", fleet(1), until="epochs>=2", quiet=True)
    assert not capsys.readouterr().err


def test_run_settings_match_run_config() -> None:
    """Intervals, codecs, rules, gates and the best metric may also be text, and `about` may be None."""
    other = {
        Every: Every | str,
        Codec | None: Codec | str | None,
        BestMetric | None: BestMetric | str | None,
        Combine | None: Combine | str | None,
        tuple[Gate, ...]: Sequence[Gate | str] | str,
        Mapping[str, Any]: Mapping[str, Any] | None,
    }
    declared = {name: other.get(hint, hint) for name, hint in get_type_hints(RunConfig).items()}
    assert get_type_hints(RunSettings) == declared
