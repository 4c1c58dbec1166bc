"""Wrapped strategies: saving, loading, and settings in job files."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

import oddlot
from oddlot import (
    SGD,
    VCASGD,
    Asynchronous,
    BackupTasks,
    Deadline,
    FastestK,
    LocalSGD,
    ProportionalLoad,
    Quorum,
    Strategy,
    Synchronous,
    replay,
)
from oddlot.config.job_file import JobFile
from oddlot.config.overrides import Override
from oddlot.core.commands import Command
from oddlot.core.conductor import Conductor
from oddlot.core.events import Event
from oddlot.core.optimizers import Adam, Optimizer
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.strategy import View
from oddlot.core.strategy_wrapper import StrategyWrapper
from oddlot.core.support.errors import OddlotError, UsageError
from oddlot.core.support.serialization import Misfit, from_plain, to_plain
from oddlot.history.run_folder import RunFolder
from tests.fits import a_job, everything, fleet, trained
from tests.sealed import rewrite
from tests.transcripts import raises, transcribe


@dataclass
class Mine(StrategyWrapper):
    """A wrapper without changes."""

    def on(self, event: Event, view: View) -> Iterable[Command]:
        return self.inner.on(event, view)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Mine(Synchronous()),
        lambda: BackupTasks(Quorum(ProportionalLoad(LocalSGD(2, SGD(0.7, 0.9, nesterov=True)))), slow=1.0),
    ],
    ids=["mine", "nested"],
)
def test_samples_are_merged_once_across_a_resume(make: Callable[[], Strategy], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    trained(a_job(count=45), make(), fleet(2), "epochs>=1", folder)
    _, state = trained(a_job(count=45), make(), fleet(2), "epochs>=2", folder, resume=True)
    assert sorted(state.merged) == everything(45, 2)
    again = replay(tmp_path, import_strategy=True)
    assert again.difference is None
    assert type(again.conductor.strategy) is type(make())


def test_nested_strategy_round_trips() -> None:
    strategy = BackupTasks(ProportionalLoad(LocalSGD(steps=3, round={"a:1": 4})), slow=2.0)
    assert from_plain(BackupTasks, json.loads(json.dumps(to_plain(strategy)))) == strategy


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("oddlot.strategies:Synchronous", "other_strategy"),
        ("os:getcwd", "strategy_not_importable"),
    ],
)
def test_log_header_with_another_strategy_raises(place: str, code: str, tmp_path: Path) -> None:
    trained(a_job(), BackupTasks(Synchronous()), fleet(2), "epochs>=1", RunFolder(tmp_path))
    log = tmp_path / "records.jsonl"
    rewrite(log, lambda lines: lines[0]["conductor"]["strategy"].update({"is": place}))
    with raises(OddlotError, code):
        replay(tmp_path, import_strategy=True)


def test_saved_strategy_of_an_unknown_class_raises_misfit() -> None:
    """A class of the same name in another module is a different class."""
    saved = to_plain(BackupTasks(Synchronous()))
    saved["inner"]["is"] = "elsewhere:Synchronous"
    with raises(Misfit):
        from_plain(BackupTasks, saved)


@dataclass
class Alternating(Strategy):
    """A strategy that passes each event to one of several strategies in turn."""

    inners: list[Strategy]
    spare: tuple[Strategy, ...] = ()
    turn: int = 0

    def on(self, event: Event, view: View) -> Iterable[Command]:
        self.turn += 1
        return self.inners[self.turn % len(self.inners)].on(event, view)


def alternating() -> Alternating:
    return Alternating([Asynchronous(damping=1.0), BackupTasks(Mine(Asynchronous()))], (LocalSGD(),))


def test_list_of_strategies_is_saved_with_state() -> None:
    strategy = Alternating([LocalSGD(round={"a:1": 4}), LocalSGD(round={"b:2": 7})], (Mine(Synchronous()),))
    state = Conductor(strategy, SampleLedger(100))
    read = Conductor.from_plain(json.loads(json.dumps(state.to_plain())), Alternating)
    assert read.strategy == strategy
    assert read == state


def test_strategies_with_the_same_name_round_trip_by_module() -> None:
    other = type("Asynchronous", (LocalSGD,), {"__module__": "elsewhere"})
    strategy = Alternating([Asynchronous(), other(), Asynchronous()])
    read = from_plain(Alternating, json.loads(json.dumps(to_plain(strategy))))
    assert [type(each) for each in read.inners] == [Asynchronous, other, Asynchronous]


def test_optimizers_with_the_same_name_round_trip_by_module() -> None:
    other: type = dataclass(frozen=True)(type("Adam", (Optimizer,), {"__module__": "elsewhere"}))
    strategy = LocalSGD(server=Adam())
    assert from_plain(LocalSGD, json.loads(json.dumps(to_plain(strategy)))) == strategy
    assert other is not Adam


def test_strategy_with_several_inner_ones_resumes_and_replays(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    trained(a_job(count=45), alternating(), fleet(2), "epochs>=1", folder)
    _, state = trained(a_job(count=45), alternating(), fleet(2), "epochs>=2", folder, resume=True)
    assert sorted(state.merged) == everything(45, 2)
    again = replay(tmp_path)
    assert again.difference is None
    assert isinstance(again.conductor.strategy, Alternating)
    assert again.conductor.strategy.turn > 0


def test_replay_imports_only_oddlot_classes_by_default(tmp_path: Path) -> None:
    trained(a_job(), BackupTasks(Synchronous()), fleet(2), "epochs>=1", RunFolder(tmp_path))
    program = "import sys; from oddlot.history.replay import replay; print(replay(sys.argv[1]).difference)"
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout == "None\n"
    inner = {"is": "this:Zen"}
    rewrite(tmp_path / "records.jsonl", lambda lines: lines[0]["conductor"]["strategy"].update(inner=inner))
    with raises(UsageError, "import_not_allowed", strategy="this:Zen"):
        replay(tmp_path)
    assert "this" not in sys.modules


def test_wrapper_passes_on_requirements_of_its_inner_strategy() -> None:
    inner = LocalSGD(server=SGD(lr=0.5))
    assert ProportionalLoad(inner).traits(1).server_optimizer == SGD(lr=0.5)
    assert BackupTasks(VCASGD()).traits(1).shard_tasks
    with raises(UsageError, "too_few_workers", k=5, workers=2) as caught:
        Deadline(FastestK(k=5), 1.0).validate(2, [])
    assert caught.value.key == "inner.k"
    assert ProportionalLoad(oddlot.AdaptiveLoad()).traits(4).measured_loads == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("make", "code", "key"),
    [
        (lambda: BackupTasks(Synchronous), "invalid_value", "inner"),  # type: ignore[arg-type]
        (lambda: BackupTasks("synchronous"), "invalid_value", "inner"),  # type: ignore[arg-type]
        (lambda: BackupTasks(Synchronous(), slow=0.5), "invalid_value", "slow"),
        (lambda: Deadline(Synchronous(), 0.0), "invalid_value", "seconds"),
        (lambda: ProportionalLoad(Synchronous(), least=0.0), "invalid_value", "least"),
        (lambda: ProportionalLoad(VCASGD()), "shard_tasks_inside", "inner"),
        (lambda: Quorum(LocalSGD(), quorum=1.5), "invalid_value", "quorum"),
        (lambda: Quorum(Quorum(LocalSGD())), "wrapper_twice", "inner"),
        (lambda: Quorum(BackupTasks(LocalSGD())), "inner_waits_for_no_round", "inner"),
        (lambda: Quorum(FastestK(k=2)), "inner_waits_for_no_round", "inner"),
        (lambda: Quorum(Asynchronous()), "inner_waits_for_no_round", "inner"),
        (lambda: Quorum(VCASGD()), "inner_waits_for_no_round", "inner"),
        (lambda: Quorum(Deadline(oddlot.AdaptiveK())), "inner_waits_for_no_round", "inner"),
    ],
)
def test_invalid_wrapper_settings_are_rejected(make: Callable[[], object], code: str, key: str) -> None:
    with raises(UsageError, code) as caught:
        make()
    assert caught.value.key == key


def named(*settings: str) -> Strategy:
    return JobFile.read("digits", [Override.parse(one) for one in settings]).strategy()


def test_job_file_sets_the_inner_strategy() -> None:
    found = named(
        "strategy=backup_tasks", "strategy.inner=local_sgd", "strategy.inner.steps=3", "strategy.slow=2"
    )
    assert found == BackupTasks(LocalSGD(steps=3), slow=2.0)
    deep = named("strategy=deadline", "strategy.inner=proportional_load", "strategy.inner.inner.samples=8")
    assert deep == Deadline(ProportionalLoad(Synchronous(samples=8)))
    assert named("strategy.inner=local_sgd", "strategy=backup_tasks") == BackupTasks(LocalSGD())
    assert named("strategy=backup_tasks") == BackupTasks(Synchronous()), "as listed"
    assert named("strategy=deadline", "strategy.inner=backup_tasks") == Deadline(BackupTasks(Synchronous()))
    rule = named("strategy=deadline", "strategy.inner=quorum", "strategy.inner.inner.server=adam")
    assert rule == Deadline(Quorum(LocalSGD(server=oddlot.Adam())))


def test_job_file_overrides_some_inner_settings_of_quorum() -> None:
    """Missing settings keep the values of DiLoCo, even if the job file names the default inner strategy."""
    quorum = "strategy=quorum"
    nesterov = SGD(0.7, 0.9, nesterov=True)
    assert named(quorum) == Quorum(LocalSGD(8, nesterov))
    assert named(quorum, "strategy.inner.steps=4") == Quorum(LocalSGD(4, nesterov))
    lower = named(quorum, "strategy.inner.server.lr=0.5", "strategy.grace=0")
    assert lower == Quorum(LocalSGD(8, SGD(0.5, 0.9, nesterov=True)), grace=0)
    assert named(quorum, "strategy.inner=local_sgd", "strategy.inner.steps=4") == Quorum(
        LocalSGD(4, nesterov)
    )
    assert named(quorum, "strategy.inner.server=sgd") == Quorum(LocalSGD(8, nesterov))
    adam = named(quorum, "strategy.inner.server=adam", "strategy.inner=local_sgd")
    assert adam == Quorum(LocalSGD(8, oddlot.Adam()))
    around = named(quorum, "strategy.inner=proportional_load", "strategy.inner.inner.samples=4")
    assert around == Quorum(ProportionalLoad(Synchronous(4)))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["strategy=quorum", "strategy.steps=2"], [("strategy.steps=2", "unknown_key")]),
        (
            ["strategy=quorum", "strategy.inner=asynchronous"],
            [("strategy.inner=asynchronous", "inner_waits_for_no_round")],
        ),
        (
            ["strategy=quorum", "strategy.inner.server.eps=1"],
            [("strategy.inner.server.eps=1", "setting_of_another_kind")],
        ),
        (["strategy=adaptive_load", "strategy.switch.a=1"], [("strategy.switch.a=1", "unknown_key")]),
        (["strategy=backup_tasks", "strategy.inner.steps=2"], [("strategy.inner.steps=2", "unknown_key")]),
        (  # the outer wrapper counts, too
            ["strategy=quorum", "strategy.inner=proportional_load", "strategy.inner.inner.steps=2"],
            [("strategy.inner.inner.steps=2", "unknown_key")],
        ),
        (
            ["strategy=backup_tasks", "strategy.inner.name=proportional_load", "strategy.inner.inner.slow=2"],
            [("strategy.inner.inner.slow=2", "unknown_key")],
        ),
        (  # no strategy is suggested that a quorum cannot wrap
            ["strategy=quorum", "strategy.inner.k=3"],
            [("strategy.inner.k=3", "unknown_key")],
        ),
        (  # all errors are reported. The current strategy is not suggested.
            ["strategy=deadline", *(f"strategy.inner.{said}" for said in ("samples=0", "k=3", "seconds=3"))],
            [
                ("strategy.inner.k=3", "unknown_key"),
                ("strategy.inner.samples=0", "invalid_value"),
                ("strategy.inner.seconds=3", "unknown_key"),
            ],
        ),
        (["strategy=backup_tasks", "strategy.k=2"], [("strategy.k=2", "unknown_key")]),
        (
            ["strategy=adaptive_load", "strategy.table=[[2,8]]"],
            [("strategy.table=[[2,8]]", "too_few_values")],
        ),
        (
            ["strategy=adaptive_load", "strategy.table=[[2,8,1.0,9]]"],
            [("strategy.table=[[2,8,1.0,9]]", "too_many_values")],
        ),
        (
            ["strategy=proportional_load", "strategy.inner=vc_asgd"],
            [("strategy.inner=vc_asgd", "shard_tasks_inside")],
        ),
        (["strategy=deadline", "strategy.inner=fast"], [("strategy.inner=fast", "unknown_name")]),
        (
            ["strategy=deadline", "strategy.inner=synchronous", "strategy.inner.k=3"],
            [("strategy.inner.k=3", "unknown_key")],
        ),
    ],
)
def test_unknown_strategy_settings_are_rejected(settings: list[str], expected: list[tuple[str, str]]) -> None:
    with pytest.raises(UsageError) as caught:
        named(*settings)
    found = getattr(caught.value, "errors", [caught.value])
    assert [(error.fields["flag"], error.code) for error in found] == [
        (f"--set {flag}", code) for flag, code in expected
    ]
    transcribe(str(caught.value))
