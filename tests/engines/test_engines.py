"""Tests of local and simulated engines with the scenarios of `check_engine`."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from oddlot import Local, Machine, Simulated
from oddlot.engines.mesh.messages import ModelMessage, ModelRequest
from oddlot.engines.mesh.simulated import SimulatedMesh
from oddlot.engines.simulated.task_execution import TaskExecution
from oddlot.machines import Deterministic, Lifetime, Link
from oddlot.testing.engine_check import SCENARIOS, a_peer_dies, peers_exchange_models

pytestmark = pytest.mark.usefixtures("fork_server")


def local(workers: int) -> Local:
    return Local(workers=workers, threads=1)


def simulated(workers: int) -> Simulated:
    link = Link(megabits_per_second=100, latency_milliseconds=1)
    stays = Lifetime(mean_seconds=1e9, delay=Deterministic())
    names = [f"m{number}" for number in range(workers)]
    return Simulated(
        [Machine(name, 0.01, link=link, lifetime=stays, seconds_to_return=0.5) for name in names]
    )


LONG = (local, peers_exchange_models), (local, a_peer_dies)
"""Cases with slow starts of peer processes. `tests/engines/mesh/test_processes.py` has a short test of them."""


@pytest.mark.parametrize(
    ("make", "scenario"),
    [
        pytest.param(*case, marks=[pytest.mark.long] if case in LONG else [])
        for case in product((local, simulated), SCENARIOS)
    ],
)
def test_engine_passes_scenario(make: Callable[[int], Any], scenario: Callable[[Any], None]) -> None:
    scenario(make)


@pytest.mark.filterwarnings("ignore")  # about the peer that hangs without its update
@pytest.mark.parametrize(
    ("name", "kind"), [("send", ModelRequest), ("send", ModelMessage), ("_answer", TaskExecution)]
)
def test_mesh_that_loses_a_message_fails_the_check(
    name: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, lost = getattr(SimulatedMesh, name), list[object]()

    def loses_first(*arguments: Any) -> Any:
        found = [one for one in arguments if isinstance(one, kind)]
        if found and not lost:
            lost.extend(found)
            return None
        return work(*arguments)

    monkeypatch.setattr(SimulatedMesh, name, loses_first)
    with pytest.raises(AssertionError, match="lost"):
        peers_exchange_models(simulated)
