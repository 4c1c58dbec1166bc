"""Tests of update servers of a simulated hub: waiting times, losses, costs and overwritten updates."""

from typing import Any

import pytest

from oddlot import VCASGD, Machine, Run, Simulated, UsageError, fit
from oddlot.core.events import Arrived, Lost
from oddlot.faults import Chaos, Fault
from oddlot.history.metrics import tally_of
from oddlot.machines import Fleet, Hub, Link
from tests.engines.log import names, times
from tests.fits import SAMPLES, a_job
from tests.transcripts import raises

SHARDS, SECONDS = 8, 0.6
"""Number of shards, and seconds of a task with one shard."""


def run(hub: Hub, machines: int = 4, epochs: int = 4, chaos: Chaos | None = None, **each: float) -> Run:
    fleet = Fleet([Machine(f"m{i}", SECONDS * SHARDS / SAMPLES, **each) for i in range(machines)], hub)  # type: ignore[arg-type]  # all are numbers
    on, until = Simulated.of(fleet, computes=False), f"epochs>={epochs}"
    return fit(a_job(), VCASGD(alpha=0.5), on, until=until, shards=SHARDS, chaos=chaos)


def test_servers_process_updates_in_turn() -> None:
    """Four updates arrive at 0.6 s. One server needs 0.4 s for them, and two need 0.2 s without transactions."""
    for servers, overwrites, waits in (
        (1, False, [0.1, 0.2, 0.3, 0.4]),
        (2, False, [0.1, 0.2, 0.3, 0.4]),
        (2, True, [0.1, 0.1, 0.2, 0.2]),
        (5, True, [0.1] * 4),
    ):
        found = run(Hub(seconds_per_update=0.1, servers=servers, overwrites=overwrites), epochs=1)
        arrived = times(found.records, Arrived)[:4]
        assert arrived == pytest.approx([SECONDS + wait for wait in waits])


def test_more_servers_remove_the_bottleneck() -> None:
    """8 machines send an update every 0.075 s, and a server needs 0.2 s for each."""
    seconds = {
        servers: run(Hub(0.0, 0.2, servers, overwrites=servers > 1), machines=8).summary["seconds"]
        for servers in (1, 2, 4)
    }
    updates = 4 * SHARDS
    assert seconds[1] == pytest.approx(updates * 0.2 + SECONDS), "never idle after its first update"
    assert seconds[2] == pytest.approx(updates * 0.2 / 2 + SECONDS, rel=0.05)
    assert seconds[4] == pytest.approx(4 * (SECONDS + 0.2) + 0.2), (
        "the machines, half of which come 0.2 s later"
    )


def test_update_in_progress_of_a_lost_machine_is_merged() -> None:
    """The first update of m0 arrives at 0.6 s and is processed at 1.1 s. m0 is killed at 0.8 s."""
    found = run(Hub(seconds_per_update=0.5, servers=4), machines=1, epochs=1, joins_at_seconds=0.0)
    assert found.summary["seconds"] == pytest.approx(SHARDS * (SECONDS + 0.5))
    killed = Chaos([Fault("kill", at_seconds=(0.8,))])
    again = run(Hub(seconds_per_update=0.5), 1, 1, chaos=killed, seconds_to_return=0.0)
    assert again.summary["updates"] == SHARDS
    assert again.summary["wasted"] == {"lost": SAMPLES // SHARDS}, "the next task alone, which never began"
    assert again.summary["workers_lost"] == 1
    at_once = [record for record in again.records if record.now == pytest.approx(1.1)]
    assert names(at_once, object) == ["Arrived", "Lost"]


def test_update_in_transit_of_a_lost_machine_is_lost() -> None:
    """m0 computes from 0.2 to 1.4 s, and is killed at 1.5 s. Its first update is processed from 1 to 6 s, and the
    second update would arrive at 1.6 s."""
    fleet = [Machine("m0", SECONDS * SHARDS / SAMPLES, link=Link(latency_milliseconds=200))]
    late = [Machine("late", 0.001, joins_at_seconds=20.0)]
    on = Simulated([*fleet, *late], in_flight=2, hub=Hub(seconds_per_update=5.0), computes=False)
    chaos = Chaos([Fault("kill", at_seconds=(1.5,))])
    patient = VCASGD(alpha=0.5, deadline_seconds=100)
    found = fit(a_job(), patient, on, until="epochs>=1", shards=SHARDS, chaos=chaos)
    assert names(found.records, Arrived, Lost)[:2] == ["Arrived", "Lost"]
    assert not any(record.remark for record in found.records), "nobody takes it in, not even as an echo"
    assert found.summary["wasted"]["lost"] == 2 * SAMPLES // SHARDS, (
        "what was on its way, and what it was given after"
    )


def test_hub_is_paid_for() -> None:
    found = run(Hub(dollars_per_hour=36.0), machines=1, epochs=1, dollars_per_hour=3.6)
    seconds = found.summary["seconds"]
    assert found.dollars == pytest.approx(0.011 * seconds)
    bill = tally_of(found.records, SAMPLES).cost
    assert bill.dollars_of_hub == pytest.approx(0.01 * seconds)
    assert bill.accounts["m0"].dollars(seconds) == pytest.approx(0.001 * seconds)


def test_only_several_overwriting_servers_lose_updates() -> None:
    for hub in (Hub(seconds_per_update=0.2, servers=3), Hub(seconds_per_update=0.2, overwrites=True)):
        assert run(hub, machines=8).summary["overwritten"] == 0
    assert run(Hub(seconds_per_update=0.2, servers=3, overwrites=True), machines=8).summary["overwritten"] > 9


@pytest.mark.parametrize("setting", [{"overwrites": True}, {"servers": 2}], ids=["overwrites", "servers"])
def test_servers_without_an_update_time_are_rejected(setting: dict[str, Any]) -> None:
    with raises(UsageError, "missing_setting", name="seconds_per_update") as caught:
        Hub(**setting)
    assert caught.value.key in setting


def test_loss_is_reported_after_all_received_updates() -> None:
    """Updates of m0 arrive at 0.6 and 1.2 s. The server has processed them at 1.5 and 2.4 s. m0 is killed at 1.3 s."""
    fleet = [Machine("m0", SECONDS * SHARDS / SAMPLES), Machine("m1", 10.0)]
    on = Simulated(fleet, hub=Hub(seconds_per_update=0.9), computes=False, in_flight=2)
    killed = Chaos([Fault("kill", machine="m0", at_seconds=(1.3,))])
    strategy = VCASGD(alpha=0.5)
    found = fit(a_job(), strategy, on, until="seconds>=4", shards=SHARDS, chaos=killed)
    message = [record for record in found.records if 0 < record.now < 4]
    assert names(message, object) == ["FaultInjected", "Gone", "Arrived", "Arrived", "Lost"]
    assert times(message, object) == pytest.approx([1.3, 1.3, 1.5, 2.4, 2.4])
