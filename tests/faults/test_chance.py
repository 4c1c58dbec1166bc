"""Tests of the times and victims of random and periodic faults, also after kills of the hub."""

from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

import oddlot
from oddlot import Asynchronous, Machine, Simulated
from oddlot.core.events import Arrived, FaultInjected, Resumed
from oddlot.core.records import Record
from oddlot.core.tasks import machine_of
from oddlot.faults import Chaos, Fault
from oddlot.history.log import read_log
from tests.engines.log import events, records_of, times
from tests.fits import a_job
from tests.run.test_resume import KillAt, Killed

MACHINES = Simulated([Machine(f"w{i}", 0.01, seconds_to_return=0.5) for i in (1, 2, 3)], computes=False)
OFTEN = Fault("slow", every_seconds=0.25, factor=1e-9)
BY_CHANCE = Fault("slow", per_hour=36_000.0, factor=1e-9)


def struck(fault: Fault, epochs: int = 20, seed: int = 0, on: Simulated = MACHINES) -> list[Record]:
    """Return the records of faults injected into three machines."""
    chaos = Chaos([fault], seed)
    run = oddlot.fit(a_job(), Asynchronous(), on, until=f"epochs>={epochs}", chaos=chaos)
    return records_of(run.records, FaultInjected)


def lives(folder: Path, fault: Fault, *kills: float) -> list[Record]:
    """Return the log of a run with kills of the hub at these times, without faults continued after a kill."""
    for number, kill in enumerate([*kills, inf]):
        resume = "latest" if number > 0 else None
        options: dict[str, Any] = {"out": folder, "resume": resume, "callbacks": [KillAt(kill)]}
        options |= {"chaos": Chaos([fault]), "checkpoint_every": "2 versions"}
        try:
            oddlot.fit(a_job(), Asynchronous(), MACHINES, until="epochs>=20", **options)
        except Killed:
            continue
    log = read_log(folder / "records.jsonl")
    return [r for r in log if not isinstance(r.event, FaultInjected) or r.event.fault[-1] != ")"]


def test_rate_is_faults_per_hour() -> None:
    message = struck(BY_CHANCE, epochs=150)
    assert 8.5 < len(message) / message[-1].now < 11.5


def test_every_worker_is_hit_in_a_seeded_order() -> None:
    drawn = [[event.node for event in events(struck(OFTEN, 40, seed), FaultInjected)] for seed in (0, 1)]
    assert drawn[0] != drawn[1]
    for victims in drawn:
        counts = Counter(victims)
        assert counts.keys() == {"w1", "w2", "w3"}
        assert min(counts.values()) > len(victims) / 8


def test_victims_do_not_depend_on_the_join_order() -> None:
    """Worker processes join in random order."""
    fleets = MACHINES, replace(MACHINES, machines=MACHINES.machines[::-1])
    one, other = ([event.node for event in events(struck(OFTEN, on=on), FaultInjected)] for on in fleets)
    assert one[:10] == other[:10]


def test_periodic_faults_keep_their_times_after_a_resume(tmp_path: Path) -> None:
    at = [round(now / 0.25, 6) for now in times(lives(tmp_path, OFTEN, 0.6, 1.1), FaultInjected)]
    assert at == [float(n) for n in range(1, len(at) + 1)]


def test_random_faults_differ_after_each_resume(tmp_path: Path) -> None:
    """With equal faults after each resume, the hub would always be killed at the same time after its start."""
    log = lives(tmp_path, BY_CHANCE, 0.8, 1.6)
    begins, at = [0.0, *times(log, Resumed)], times(log, FaultInjected)
    assert len({round(next(now for now in at if now > begin) - begin, 3) for begin in begins}) == 3


@pytest.mark.parametrize("kills", [(), (0.6,)])
def test_lasting_fault_ends_on_time_despite_a_resume(tmp_path: Path, kills: tuple[float, ...]) -> None:
    fault = Fault("slow", "w1", at_seconds=(0.2,), for_seconds=1.0, factor=4.0)
    slow = [
        r.now
        for r in records_of(lives(tmp_path, fault, *kills), Arrived)
        if machine_of(r.event.update.sender) == "w1" and r.event.update.seconds["compute"] > 0.1
    ]
    assert min(slow) < 0.5
    assert 1.0 < max(slow) < 1.3
