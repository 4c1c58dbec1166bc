"""Copies, saved states and replays of a conductor. It needs only the standard library."""

import copy
import json
import subprocess
import sys
from contextlib import suppress

import pytest

from oddlot.core.conductor import Conductor
from oddlot.core.records import Record
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.strategy import Strategy, View
from oddlot.core.support.errors import UsageError
from oddlot.core.support.serialization import from_plain, to_plain
from oddlot.strategies import Asynchronous, FastestK, LocalSGD, Synchronous
from oddlot.testing.run_scenario import Data, ScenarioRun
from tests.toys import Backups, Timed

STRATEGIES: list[Strategy] = [
    Synchronous(),
    FastestK(k=2),
    Asynchronous(max_staleness=0),
    LocalSGD(steps=1),
    Backups(),
    Timed(),
]
EVENTFUL = """join a/join b/join c/finish a/finish b samples=3/lose b/wait 61/join d/leave c/late c
finish a/finish d/wait 30/finish a/join e/finish e/finish d samples=1"""


def records(conductor: Conductor) -> list[Record]:
    play = ScenarioRun(conductor)
    lines = EVENTFUL.replace("\n", "/").split("/")
    message: list[Record] = []
    for line in lines:
        with suppress(UsageError):  # with some strategies, the worker has no task to finish
            message += play.do(line)
    return message


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("data", [Data(40, 2), Data(40, None, shards=3, in_flight=2)], ids=str)
def test_log_replays_and_copies_at_every_record_decide_the_same(strategy: Strategy, data: Data) -> None:
    original = data.conductor(copy.deepcopy(strategy))
    log = records(original)
    assert len(log) > 10
    replayed = data.conductor(copy.deepcopy(strategy))
    for number, record in enumerate(log):
        saved = json.loads(json.dumps(replayed.to_plain()))
        copies = [copy.deepcopy(replayed), Conductor.from_plain(saved, type(strategy))]
        for other in copies:
            assert other.to_plain() == replayed.to_plain()
            for later in log[number:]:
                assert other.handle(later.event, later.now) == later
            assert other.alarm == original.alarm
            assert other.to_plain() == original.to_plain()
        assert replayed.handle(record.event, record.now) == record


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_log_round_trips_through_json(strategy: Strategy) -> None:
    log = records(Data(40).conductor(copy.deepcopy(strategy)))
    text = json.dumps(to_plain(log))
    assert from_plain(list[Record], json.loads(text)) == log


def test_rng_state_survives_saving() -> None:
    conductor = Data().conductor(Synchronous())
    View(conductor).rng.random()
    read = Conductor.from_plain(json.loads(json.dumps(conductor.to_plain())), Synchronous)
    assert View(read).rng.random() == View(conductor).rng.random()


@pytest.mark.parametrize(
    "module", ["oddlot.core.conductor", "oddlot.strategies", "oddlot.testing.strategy_check"]
)
def test_strategies_import_neither_torch_nor_numpy(module: str) -> None:
    check = f"import sys, {module}; print([name for name in ('torch', 'numpy', 'asyncio') if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_conductors_with_different_rng_states_are_not_equal() -> None:
    one, other = (Conductor(Synchronous(), SampleLedger(16, 1)) for _ in range(2))
    assert one == other
    other.rng.random()
    assert one != other
    assert one != "something else"
