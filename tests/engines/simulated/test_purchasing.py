"""Deadlines in the simulator: on-demand machines are bought, work, and are given back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oddlot import Asynchronous, Gossip, Job, Simulated, Strategy, Synchronous, UsageError, fit
from oddlot.core.events import Gone, Joined, Leaving, Lost, Ordered
from oddlot.core.tasks import machine_of
from oddlot.history.goals import Every
from oddlot.history.run_folder import RunFolder
from oddlot.machines import Buying, Fleet, Link
from oddlot.machines.buying import POLICIES, Purchase, Situation
from oddlot.machines.capacity import Capacity
from oddlot.machines.market import Zone
from oddlot.run.result import Run
from tests.engines.log import records_of
from tests.engines.market import alive, run, when, zone
from tests.fits import SAMPLES, a_job, everything, trained
from tests.transcripts import raises, warns

EPOCHS = 20
"""Two machines need 24 s for them: 120 tasks of 0.4 s."""
AWAY = alive((0.0, 2.0), (6.0, 0.0), (40.0, 2.0))
"""Both machines are preempted at 6 s, and return at 40 s."""


def market(capacity: Capacity = AWAY, start: float = 0.5) -> Zone:
    return zone(capacity, seconds_to_start=start)


def by(seconds: float, policy: str = "fill_in", **settings: Any) -> Buying:
    return Buying(seconds / 3600, policy, **settings)


def bought(found: Run, *kinds: type) -> list[tuple[float, str]]:
    return [(time, node) for time, node in when(found, *kinds) if "on-demand" in node]


def test_spot_alone_is_used_while_there_is_slack() -> None:
    """Without and with a policy that never acts, the log is the same."""
    plain, late = (run(market(), until=f"epochs>={EPOCHS}", buying=buying) for buying in (None, by(1_000.0)))
    assert not bought(late, Ordered)
    assert late.records == plain.records
    assert late.summary["seconds"] > 55


@pytest.mark.parametrize("policy", ["fill_in", "uniform_progress", "greedy"])
@pytest.mark.parametrize("strategy", [Asynchronous(), Synchronous()])
def test_deadline_is_met_although_capacity_is_gone(policy: str, strategy: Strategy) -> None:
    found = run(market(), until=f"epochs>={EPOCHS}", strategy=strategy, buying=by(40.0, policy))
    assert 30 < found.summary["seconds"] <= 40 or policy == "uniform_progress"
    assert found.summary["seconds"] <= 40
    assert {machine_of(node) for _, node in bought(found, Ordered)} == {"east-on-demand1", "east-on-demand2"}


def test_on_demand_machines_are_given_back() -> None:
    """Spot machines return at 20 s and are ready at 20.5 s. Then the on-demand machines finish their tasks."""
    found = run(
        market(alive((0.0, 2.0), (6.0, 0.0), (20.0, 2.0))), until=f"epochs>={EPOCHS}", buying=by(31.0)
    )
    assert found.summary["seconds"] <= 31
    (ordered, _), *_ = bought(found, Ordered)
    assert 6.0 < ordered < 12.0
    assert [(time, machine_of(node)) for time, node in bought(found, Leaving)] == [
        (20.5, "east-on-demand1"),
        (20.5, "east-on-demand2"),
    ]
    assert all(20.5 <= time <= 20.9 for time, _ in bought(found, Lost)), "each within a minibatch"
    assert found.summary["samples_wasted"] == 2 * 8, "only the preemption has lost tasks"
    assert found.summary["workers_left"] == 2


def test_only_the_zone_without_capacity_gets_machines() -> None:
    """Both zones need 12 s for the work. After 6 s, one zone has no machine."""
    other = zone(name="west", count=1, seconds_to_start=0.5)
    found = run(market(), other, until=f"epochs>={EPOCHS}", buying=by(26.0))
    assert found.summary["seconds"] <= 26
    assert {machine_of(node) for _, node in bought(found, Joined)} == {"east-on-demand1", "east-on-demand2"}


def test_running_machine_is_kept_when_another_spot_machine_is_lost() -> None:
    """One of two spot machines is preempted at 2 s. One returns at 12 s, and the other one is preempted at 12.2 s."""
    falls = alive((0.0, 2.0), (2.0, 1.0), (12.0, 2.0), (12.2, 1.0))
    found = run(market(falls), until=f"epochs>={EPOCHS}", buying=by(28.5))
    assert found.summary["seconds"] <= 28.5
    assert len(bought(found, Ordered)) == 1


def test_running_machine_is_kept_when_more_are_bought() -> None:
    """Two of three spot machines are preempted, at 2 s and at 8 s."""
    falls = alive((0.0, 3.0), (2.0, 2.0), (8.0, 1.0))
    found = run(zone(falls, 3, seconds_to_start=0.5), until=f"epochs>={EPOCHS}", buying=by(20.0))
    assert found.summary["seconds"] <= 20
    assert len(bought(found, Ordered)) == 2
    assert not bought(found, Leaving)


class UntilTwo:
    """A policy that has an on-demand machine until 2 s."""

    def decide(self, now: Situation) -> Purchase:
        return Purchase(1 if now.elapsed_seconds < 2 else 0)


@pytest.mark.parametrize(("start", "kind"), [(0.5, Lost), (5.0, Gone)])
def test_machine_is_given_back_while_it_works_or_starts(
    start: float, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POLICIES, "greedy", UntilTwo())
    found = run(market(start=start), until="seconds>=4", buying=by(40.0, "greedy", epochs=20))
    assert bought(found, Ordered) == [(0.0, "east-on-demand1")]
    ((time, _),) = bought(found, kind)
    assert 2.0 <= time <= 2.0 + start + 0.4
    assert found.dollars == pytest.approx(time + 4.0 * 0.2)


def test_bill_is_the_sum_over_all_machines() -> None:
    found = run(market(), until=f"epochs>={EPOCHS}", buying=by(40.0))
    begins, dollars = dict[str, float](), 0.0
    ends = {record.event.node: record.now for record in reversed(records_of(found.records, Gone, Lost))}
    for record in records_of(found.records, Ordered, Joined):
        begins.setdefault(record.event.node, record.now)
    for node, begin in begins.items():
        price = 1.0 if "on-demand" in node else 0.1
        dollars += price * (ends.get(node, found.summary["seconds"]) - begin)
    assert found.dollars == pytest.approx(dollars)


@pytest.mark.parametrize("policy", ["fill_in", "greedy"])
def test_every_sample_is_merged_once_and_a_resumed_run_meets_the_deadline(
    tmp_path: Path, policy: str
) -> None:
    on = Simulated.of(Fleet([market()], buying=by(40.0, policy)))
    folder, goal = RunFolder(tmp_path), f"epochs>={EPOCHS}"
    trained(
        a_job(), Asynchronous(), on, f"seconds>=20 or {goal}", folder, checkpoint_every=Every(1, "epochs")
    )
    found, state = trained(a_job(), Asynchronous(), on, goal, folder, resume=True)
    assert sorted(state.merged) == everything(SAMPLES, EPOCHS)
    assert 30 < found.summary["seconds"] <= 40
    again = run(market(), until=goal, buying=by(40.0, policy))
    assert run(market(), until=goal, buying=by(40.0, policy)).records == again.records


@pytest.mark.parametrize(
    ("until", "epochs"),
    [
        (f"samples>={SAMPLES * EPOCHS}", None),
        ("versions>=120", None),
        ("versions>=120 or epochs>=99", None),
        ("loss<=0 or versions>=120", 20),
        ("loss<=0 or epochs>=20", None),
    ],
)
def test_work_is_known_by_the_goal(until: str, epochs: float | None) -> None:
    found = run(market(), until=until, buying=by(40.0, epochs=epochs))
    assert 30 < found.summary["seconds"] <= 40
    assert bought(found, Ordered)


def test_slow_machines_are_noticed() -> None:
    """With its transfers, a task takes 0.6 s instead of 0.4 s."""
    one = market()
    one = replace(one, machine=replace(one.machine, link=Link(latency_milliseconds=100)))
    found = run(one, until=f"epochs>={EPOCHS}", buying=by(60.0))
    assert found.summary["seconds"] <= 60
    assert bought(found, Ordered)


@pytest.mark.parametrize(
    ("settings", "until", "code"),
    [
        ({}, "loss<=0.1", "unknown_work"),
        ({}, "seconds>=5", "unknown_work"),
    ],
)
def test_unknown_work_is_rejected(settings: dict[str, Any], until: str, code: str, tmp_path: Path) -> None:
    with raises(UsageError, code):
        fit(a_job(), Asynchronous(), Simulated([market()], buying=by(40.0, **settings)), until=until)


def test_mesh_is_rejected() -> None:
    job: Job = a_job()
    with raises(UsageError, "buying_on_mesh"):
        fit(job, Gossip(), Simulated([market()], buying=by(40.0)), until="epochs>=1")


def test_names_must_be_free() -> None:
    with raises(UsageError, "name_twice", name="east-on-demand1"):
        Simulated([market(), zone(name="east-on-demand")], buying=by(40.0))
    Simulated([market(), zone(name="east-on-demand")])


def test_impossible_deadline_replaces_missing_machines_at_once() -> None:
    with warns("deadline_too_short"):
        found = run(market(), until=f"epochs>={EPOCHS}", buying=by(20.0))
    assert when(found, Ordered)[:2] == [(0.0, "east1"), (0.0, "east2")]
    assert [time for time, _ in bought(found, Ordered)] == [6.0, 6.0]
    assert found.summary["seconds"] < 26


def test_passed_deadline_replaces_missing_machines_at_once(tmp_path: Path) -> None:
    goal, buying = f"epochs>={EPOCHS}", by(10.0)
    run(market(), until="seconds>=15", out=tmp_path)
    with warns("deadline_passed"):
        found = run(market(), until=goal, out=tmp_path, resume="latest", buying=buying)
    assert bought(found, Ordered)[0][0] == 15.0
