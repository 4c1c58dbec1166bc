"""Strategies around strategies in books, files and words: what is inside is saved, read back and named."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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
from oddlot.core.errors import CheckpointError, UsageError
from oddlot.core.plain import from_plain, to_plain, type_of
from oddlot.core.strategy import View
from oddlot.core.words import (
    Command,
    Event,
)
from oddlot.core.wrapper import Wrapper
from oddlot.run_folder import RunFolder
from oddlot.settings import JobFile, Override
from oddlot.strategies import WRAPPERS
from tests.fits import a_job, everything, fleet, trained

AROUND: dict[str, Callable[[], Strategy]] = {
    "quorum": lambda: Quorum(ProportionalLoad(LocalSGD(steps=2, server=SGD(0.7, 0.9, nesterov=True)))),
    "backup_tasks": lambda: BackupTasks(LocalSGD(steps=2, server=SGD(0.7, 0.9, nesterov=True)), slow=1.0),
    "deadline": lambda: Deadline(Synchronous(samples=12), 0.3),
    "proportional_load": lambda: ProportionalLoad(BackupTasks(Asynchronous())),
}


def test_every_wrapper_is_tried() -> None:
    assert AROUND.keys() == WRAPPERS.keys()


@pytest.mark.parametrize("name", AROUND)
def test_every_sample_is_merged_once_through_a_pause(name: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    trained(a_job(count=45), AROUND[name](), fleet(2), "epochs>=1", folder)
    run, books = trained(a_job(count=45), AROUND[name](), fleet(2), "epochs>=3", folder, resume=True)
    assert sorted(books.merged) == everything(45, 3)
    assert replay(tmp_path).difference is None
    assert type(replay(tmp_path).conductor.strategy) is type(AROUND[name]())
    assert run.ended == "epochs>=3"


def test_whatever_is_inside_comes_back() -> None:
    strategy = BackupTasks(ProportionalLoad(LocalSGD(steps=3, round={"a:1": 4})), slow=2.0)
    kind = type_of(strategy)
    assert kind == BackupTasks[ProportionalLoad[LocalSGD]]
    assert from_plain(kind, json.loads(json.dumps(to_plain(strategy)))) == strategy


@dataclass
class Mine(Wrapper[Synchronous]):
    """Around this one alone."""

    def on(self, event: Event, view: View) -> Iterable[Command]:
        return self.inner.on(event, view)


def test_a_wrapper_around_one_strategy_alone(tmp_path: Path) -> None:
    trained(a_job(), Mine(Synchronous()), fleet(2), "epochs>=1", RunFolder(tmp_path))
    trained(a_job(), Mine(Synchronous()), fleet(2), "epochs>=2", RunFolder(tmp_path), resume=True)
    assert replay(tmp_path).difference is None


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("oddlot.strategies:BackupTasks", "holds no books of a BackupTasks"),
        ("oddlot.strategies:Synchronous[oddlot.strategies:Synchronous]", "cannot be imported"),
        ("os:environ[os:getcwd]", "cannot be imported"),
        ("os:getcwd", "cannot be imported"),
    ],
)
def test_a_heading_that_names_something_else(place: str, words: str, tmp_path: Path) -> None:
    trained(a_job(), BackupTasks(Synchronous()), fleet(2), "epochs>=1", RunFolder(tmp_path))
    log = tmp_path / "records.jsonl"
    head, rest = log.read_text().split("\n", 1)
    log.write_text(json.dumps(json.loads(head) | {"strategy": place}) + "\n" + rest)
    with pytest.raises((UsageError, CheckpointError), match=words):
        replay(tmp_path)


def test_what_the_one_inside_asks_for_is_asked_for() -> None:
    inner = LocalSGD(server=SGD(lr=0.5))
    assert ProportionalLoad(inner).server == SGD(lr=0.5)
    assert BackupTasks(VCASGD()).whole_shards
    with pytest.raises(UsageError, match="k = 5 results of 2 workers"):
        Deadline(FastestK(k=5), 1.0).check_workers(2)
    assert ProportionalLoad(oddlot.AdaptiveLoad()).wants_fitted(4) == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: BackupTasks[Any](Synchronous),
            "inner = <class 'oddlot.strategies.synchronous.Synchronous'> must be a",
        ),
        (
            lambda: BackupTasks[Any]("synchronous"),
            "inner = 'synchronous' must be a strategy, such as Synchronous()",
        ),
        (lambda: BackupTasks(Synchronous(), slow=0.5), "slow = 0.5 must be at least 1"),
        (lambda: Deadline(Synchronous(), 0.0), "seconds = 0.0 must be finite and above 0"),
        (lambda: ProportionalLoad(Synchronous(), least=0.0), "least = 0.0 must be above 0"),
        (lambda: oddlot.AdaptiveK(k=5, most=3), "most = 3 is below k = 5"),
        (lambda: oddlot.AdaptiveLoad(((1, 4, 1.0),), loads=(4,)), "loads are for rounds that are measured"),
        *(
            (partial(Quorum, inner), f"inner = {type(inner).__name__}(...) must wait for everybody")
            for inner in (
                BackupTasks(LocalSGD()),
                FastestK(k=2),
                Asynchronous(),
                VCASGD(),
                Deadline(oddlot.AdaptiveK()),
            )
        ),
        (lambda: Quorum(Quorum(LocalSGD())), "Quorum is inside already: once is enough"),
        (lambda: Quorum(LocalSGD(), quorum=1.5), "quorum = 1.5 must be above 0 and at most 1"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert str(caught.value).startswith(words)


def named(*settings: str) -> Strategy:
    return JobFile.read("digits", [Override.parse(one) for one in settings]).strategy()


def test_job_files_name_what_is_inside() -> None:
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


def test_job_files_change_some_of_what_is_inside_a_quorum() -> None:
    """What is not said stays as DiLoCo has it, also where what is there already is named."""
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
    ("settings", "words"),
    [
        (["strategy=quorum", "strategy.steps=2"], "--set strategy.steps=2: unknown key `steps` of Quorum"),
        (
            ["strategy=quorum", "strategy.inner=asynchronous"],
            "--set strategy.inner=asynchronous: inner = Asynchronous(...) must wait for everybody in each round",
        ),
        (
            ["strategy=quorum", "strategy.inner.server.eps=1"],
            (
                "--set strategy.inner.server.eps=1: eps is no setting of SGD(lr=0.7, momentum=0.9, nesterov=True, "
                "weight_decay=0.0): name a kind that has it, adam or adamw"
            ),
        ),
        (
            ["strategy=adaptive_load", "strategy.switch.a=1"],
            (
                "--set strategy.switch.a=1: unknown key `a` of ByGradients: name a kind that has it, "
                "`strategy.switch.kind` = error"
            ),
        ),
        (
            ["strategy=backup_tasks", "strategy.inner.steps=2"],
            (
                "--set strategy.inner.steps=2: unknown key `steps` of Synchronous: name a kind that has it, "
                "`strategy.inner.name` = local_sgd or "
            ),
        ),
        (  # those around all of it count too
            ["strategy=quorum", "strategy.inner=proportional_load", "strategy.inner.inner.steps=2"],
            (
                "--set strategy.inner.inner.steps=2: unknown key `steps` of Synchronous: name a kind that has it, "
                "`strategy.inner.inner.name` = local_sgd"
            ),
        ),
        (
            ["strategy=backup_tasks", "strategy.inner.name=proportional_load", "strategy.inner.inner.slow=2"],
            "--set strategy.inner.inner.slow=2: unknown key `slow` of Synchronous: there are: name, samples",
        ),
        (  # those of which a quorum is no use are not named
            ["strategy=quorum", "strategy.inner.k=3"],
            "--set strategy.inner.k=3: unknown key `k` of LocalSGD: there are: name, server, steps",
        ),
        (  # nor is what is there already; all faults are told
            ["strategy=deadline", *(f"strategy.inner.{said}" for said in ("samples=0", "k=3", "seconds=3"))],
            (
                "--set strategy.inner.samples=0: `strategy.inner.samples` is 0: it must be at least 1\n"
                "--set strategy.inner.k=3: unknown key `k` of Synchronous: name a kind that has it, "
                "`strategy.inner.name` = fastest_k or adaptive_k\n"
                "--set strategy.inner.seconds=3: unknown key `seconds` of Synchronous: there are: name, samples"
            ),
        ),
        (["strategy=backup_tasks", "strategy.k=2"], "--set strategy.k=2: unknown key `k` of BackupTasks"),
        (
            ["strategy=adaptive_load", "strategy.table=[[2,8]]"],
            "--set strategy.table=[[2,8]]: `strategy.table[0]` is [2, 8]: it has too few values",
        ),
        (
            ["strategy=adaptive_load", "strategy.table=[[2,8,1.0,9]]"],
            "--set strategy.table=[[2,8,1.0,9]]: `strategy.table[0]` is [2, 8, 1.0, 9]: it has too many values",
        ),
        (
            ["strategy=proportional_load", "strategy.inner=vc_asgd"],
            "--set strategy.inner=vc_asgd: VCASGD gives whole shards of the data, which cannot be in proportion",
        ),
        (["strategy=deadline", "strategy.inner=fast"], "--set strategy.inner=fast: unknown inner `fast`"),
        (
            ["strategy=deadline", "strategy.inner=synchronous", "strategy.inner.k=3"],
            "--set strategy.inner.k=3: unknown",
        ),
    ],
)
def test_words_that_name_nothing_are_told(settings: list[str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        named(*settings)
    assert str(caught.value).startswith(words)
