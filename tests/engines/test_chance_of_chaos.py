"""When faults strike and whom: at their rate, by their seed, and through any number of lives of the hub."""

from collections import Counter
from math import inf
from pathlib import Path
from typing import Any

import pytest

import oddlot
from oddlot import Asynchronous, Chaos, Fault, Machine, Simulated
from oddlot.core import words as w
from oddlot.log import read_log
from tests.fits import a_job
from tests.test_resume import KillAt, Killed


def machines(count: int = 3) -> Simulated:
    return Simulated([Machine(f"w{i + 1}", 0.01, seconds_to_return=0.5) for i in range(count)])


def strikes(*faults: Fault, epochs: int, seed: int = 0) -> list[tuple[float, w.Struck]]:
    """What strikes three machines, and when."""
    run = oddlot.fit(
        a_job(), Asynchronous(), machines(), until=f"epochs>={epochs}", chaos=Chaos(faults, seed)
    )
    return [(r.now, r.event) for r in run.records if isinstance(r.event, w.Struck)]


def lives(folder: Path, *faults: Fault, kills: tuple[float, ...]) -> list[tuple[float, w.Stimulus]]:
    """The log of a run whose hub is killed at these times."""
    for number, kill in enumerate([*kills, inf]):
        options: dict[str, Any] = {"out": folder, "resume": number > 0, "observers": [KillAt(kill)]}
        options |= {"chaos": Chaos(faults), "checkpoint_every": "2 versions"}
        try:
            oddlot.fit(a_job(), Asynchronous(), machines(), until="epochs>=20", **options)
        except Killed:
            continue
    return [(record.now, record.event) for record in read_log(folder / "records.jsonl")]


def test_a_rate_is_that_many_an_hour() -> None:
    told = strikes(Fault("slow", per_hour=36_000.0, factor=1e-9), epochs=150)
    per_second = len(told) / told[-1][0]
    assert 8.5 < per_second < 11.5


def test_everybody_is_struck_and_the_seed_says_in_which_order() -> None:
    victims = [
        [
            event.node
            for _, event in strikes(Fault("slow", every_seconds=0.25, factor=1e-9), epochs=40, seed=seed)
        ]
        for seed in (0, 1)
    ]
    assert victims[0] != victims[1]
    for drawn in victims:
        counts = Counter(drawn)
        assert counts.keys() == {"w1", "w2", "w3"}
        assert min(counts.values()) > len(drawn) / 8


def test_in_which_order_they_came_is_nothing_to_the_victims() -> None:
    """It is a race among worker processes."""
    fault = Fault("slow", every_seconds=0.25, factor=1e-9)
    fleets = [machines().machines, machines().machines[::-1]]
    told = [
        oddlot.fit(
            a_job(), Asynchronous(), Simulated(fleet), until="epochs>=20", chaos=Chaos([fault])
        ).records
        for fleet in fleets
    ]
    one, other = ([r.event.node for r in records if isinstance(r.event, w.Struck)] for records in told)
    assert one[:10] == other[:10]


def test_a_period_keeps_step_through_lives_of_the_hub(tmp_path: Path) -> None:
    log = lives(tmp_path, Fault("slow", every_seconds=0.25, factor=1e-9), kills=(0.6, 1.1))
    times = [
        round(now / 0.25, 6) for now, event in log if isinstance(event, w.Struck) and event.fault[-1] != ")"
    ]
    assert times == [float(n) for n in range(1, len(times) + 1)]


def test_chance_is_not_the_same_in_each_life_of_the_hub(tmp_path: Path) -> None:
    """Otherwise a hub that dies at a rate would die in the same moment of each of its lives."""
    log = lives(tmp_path, Fault("slow", per_hour=36_000.0, factor=1e-9), kills=(0.8, 1.6))
    begins = [0.0, *(now for now, event in log if isinstance(event, w.Resumed))]
    struck = [now for now, event in log if isinstance(event, w.Struck) and event.fault[-1] != ")"]
    first = [next(now for now in struck if now > begin) - begin for begin in begins]
    assert len({round(wait, 3) for wait in first}) == 3


@pytest.mark.parametrize("kills", [(), (0.6,)])
def test_what_lasts_ends_in_time_whatever_becomes_of_the_hub(
    tmp_path: Path, kills: tuple[float, ...]
) -> None:
    fault = Fault("slow", "w1", at_seconds=(0.2,), for_seconds=1.0, factor=4.0)
    log = lives(tmp_path, fault, kills=kills)
    steps = [
        (now, event.update.seconds["compute"])
        for now, event in log
        if isinstance(event, w.Arrived) and event.update.sender.partition(".")[0] == "w1"
    ]
    slow = [now for now, seconds in steps if seconds > 0.1]
    assert min(slow) < 0.5
    assert 1.0 < max(slow) < 1.3
