"""Plans of a small job: the ranked options, limits, invalid arguments, and stops."""

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf, isfinite, nan
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oddlot import SGD, AdaptiveK, Asynchronous, Groups, Job, Machine, PlanInterrupted, Synchronous, plan
from oddlot.core.support.errors import JobError, UsageError
from oddlot.machines import Alive, Deterministic, Fleet, Hub, Lifetime, Steps
from oddlot.machines.market import all_machines
from oddlot.planner.candidates import Candidate, Setup, first_optimizer, for_groups, rate_of, scaled
from oddlot.planner.fleet_speed import MeasuredSpeed, slowed, task_samples, with_merge_time
from oddlot.planner.next_candidates import next_candidates
from oddlot.planner.plan import Plan
from oddlot.planner.plan_options import Range
from oddlot.planner.plan_request import Request
from oddlot.planner.prediction import Minimize
from oddlot.planner.profile import BatchTime, this_machine
from oddlot.planner.rehearsals import rehearse
from oddlot.planner.search import Leader, Loser
from oddlot.planner.trial import Bench
from oddlot.run.config import RunConfig
from tests.fits import a_job
from tests.planner.plans import FLEET, GOAL, PRICED, SPOT, ZONE, a_plan, option, to_plan
from tests.planner.test_profile import a_profile
from tests.transcripts import mask, raises

UNTIL = "accuracy>=0.9"


def planned(fleet: Fleet = PRICED, job: Job | None = None, until: str = UNTIL, **settings: Any) -> Plan:
    """Return a plan with one rehearsal."""
    mask(time=r"\d+\.\d s\b", cost=r"\$\d+\.\d+(?= \()", loss=r"(?<=loss )\d\.\d+(?= in)")
    return plan(job or to_plan(), fleet, until=until, **{"rehearsals": 1, **settings})


def test_best_option_is_complete_and_reaches_the_goal() -> None:
    found = planned()
    best = found.best
    assert (best.is_complete, best.is_feasible, found.goal) == (True, True, GOAL)
    assert best.seconds is not None
    assert best.dollars is not None
    assert best.dollars.middle == pytest.approx(4 * 36 * best.seconds.middle / 3600)
    job = found.job(to_plan())
    assert isinstance(job.optimizer, SGD)
    assert job.optimizer.momentum < 0.9, "several groups, so a lower momentum than the job's"
    assert found.strategy == best.setup.strategy


def test_rates_are_rounded_before_they_are_tried() -> None:
    """A plan is predicted with the learning rate that its file has."""
    found = planned(job=to_plan(optimizer=SGD(0.123456789, momentum=0.7)), rehearsals=0)
    rates = [rate_of(each.candidate.optimizer) for each in found.options if each.candidate]
    assert len(rates) == 6
    assert all(rate == float(f"{rate:.4g}") for rate in rates)


@pytest.mark.parametrize("merge", [0.0, 0.5])
def test_profile_sets_the_speed_of_the_fleet(merge: float) -> None:
    """A task of one sample is slower per sample than one of two, and the hub's own merge time is kept."""
    job, hub = to_plan(), Hub(seconds_per_update=merge)
    sizes = (BatchTime(1, 0.04, 1), BatchTime(2, 0.02, 1), BatchTime(4, 0.02, 1))
    measured = replace(a_profile(), parameters=27, machine=this_machine(), batches=sizes, merge_seconds=0.25)
    fleet = Fleet([Machine("a", 0.01, dollars_per_hour=36.0), Machine("b", 0.03, dollars_per_hour=36.0)], hub)
    speed = MeasuredSpeed.of(measured, fleet)
    for batch, factor in ((2, 4.0), (8, 2.0)):
        setup = Setup(groups(1)[0], batch)
        found = speed.applied(fleet, setup)
        assert [each.seconds_per_sample for each in all_machines(found.machines)] == pytest.approx(
            [0.01 * factor, 0.03 * factor]
        )
        assert found.hub.seconds_per_update == (merge or 0.25)
    assert task_samples(Setup(Asynchronous(), 8), 4) == task_samples(Setup(groups(4)[0], 8), 4) == 8
    with_profile = planned(fleet, job, profile=measured, strategies=groups(1), batch_sizes=[8])
    slow = with_merge_time(slowed(fleet, 2.0), 0.25)
    expected = planned(slow, job, strategies=groups(1), batch_sizes=[8])
    assert with_profile.best.seconds == expected.best.seconds
    assert (with_profile.compute_factor, with_profile.merge_seconds) == (2.0, 0.25)
    with raises(UsageError, "other_profile", name="machine"):
        planned(profile=replace(measured, machine="another"))
    with raises(UsageError, "other_profile", name="parameters"):
        planned(profile=replace(measured, parameters=28))


def test_predicted_curve_starts_at_the_beginning_and_falls() -> None:
    curve = planned().curve
    assert curve[0][:2] == (0.0, 0.0)
    assert all(one[0] <= other[0] for one, other in pairwise(curve))
    assert curve[-1][2] < curve[0][2]


def test_candidates_that_were_given_up_are_estimated_slower() -> None:
    """Their loss is compared with the loss of the best candidate at the same time."""
    found = planned()
    rough = [each for each in found.options if not each.is_complete and each.seconds is not None]
    assert rough
    worse = [each.seconds.middle for each in rough if each.seconds and each.setup.groups == 1]
    assert found.best.seconds is not None
    assert min(worse) > found.best.seconds.middle


def test_losses_between_two_looks_are_interpolated() -> None:
    """A candidate that was given up before the first evaluation of the best one is compared with its looks."""
    evaluated = SimpleNamespace(seconds=9.0, metrics={"loss": 0.5})
    trial: Any = SimpleNamespace(history=[evaluated])
    leader = Leader(Candidate(option().setup, SGD(0.1)), trial, raced=((0.0, 0.0, 2.0), (1.0, 0.1, 1.0)))
    assert [leader.seconds_at(loss) for loss in (3.0, 1.5, 1.0, 0.75, 0.1)] == [0.0, 0.5, 1.0, 5.0, None]


def test_every_purchase_option_is_complete() -> None:
    found = planned(SPOT, deadline_hours=1.0, minimize="dollars")
    assert [each.bought for each in found.options if each.is_complete] == ["spot", "fill_in", "on demand"]
    assert found.best.bought == "spot"
    assert found.best_at(10.0).bought == "on demand"
    (option,) = [each for each in found.options if each.bought == "fill_in"]
    assert found.buying is not None
    assert (found.buying.deadline_hours, found.buying.policy) == (1.0, "fill_in")
    assert found.buying.epochs is not None
    assert option.halved_at[0] == pytest.approx(1.25 * found.buying.epochs, abs=1e-3)


def test_limits_make_options_infeasible() -> None:
    with raises(JobError, "no_plan", nearest=planned().best.name) as caught:
        planned(deadline_hours=1e-6).best  # noqa: B018 - raises an error
    assert caught.fields["seconds"] > 0
    with raises(JobError, "no_plan"):
        planned(budget_dollars=1e-6).best  # noqa: B018 - raises an error


def test_unreachable_goal_names_the_nearest_option() -> None:
    found = planned(until="loss<=0.0001 or epochs>=3")
    assert not any(each.is_feasible for each in found.options)
    with raises(JobError, "no_plan", nearest=found.options[0].name):
        found.best  # noqa: B018 - raises an error


def test_first_candidate_at_the_goal_is_the_best() -> None:
    """A candidate that reaches the goal while others compete is not given up for one that needs longer."""
    seconds = planned(rehearsals=0).chosen_seconds
    assert seconds is not None
    assert seconds < 0.3, "2 groups, lr 0.6; 4 groups need 0.34 s"


def test_rehearsals_keep_the_limits_of_the_goal() -> None:
    """A rehearsal that needs longer than `seconds` in the goal does not reach it."""
    free = planned(rehearsals=5)
    assert free.chosen_seconds is not None
    assert free.best.seconds is not None
    limit = free.chosen_seconds + 1e-6
    assert free.best.seconds.high > limit
    found = planned(rehearsals=5, until=f"{UNTIL} or seconds>={limit}")
    assert all(each.seconds.high <= limit for each in found.options if each.is_feasible and each.seconds)


@pytest.mark.parametrize("minimize", ["time", "dollars"])
def test_next_candidates_are_rehearsed_if_the_best_one_misses_a_limit(minimize: Minimize) -> None:
    """A plan that a narrow search finds is found by a wide search, although another candidate learns faster."""
    narrow = planned(rehearsals=3, batch_sizes=[4], strategies=groups(2)).best
    assert narrow.seconds is not None
    assert narrow.dollars is not None
    high = narrow.seconds.high
    free = planned(rehearsals=3, batch_sizes=[4, 8])
    assert free.best.seconds is not None
    assert free.best.seconds.middle < high < free.best.seconds.high
    limits: list[dict[str, Any]] = [
        {"deadline_hours": (high + 1e-6) / 3600},
        {"budget_dollars": narrow.dollars.high + 1e-9},
    ]
    for limit in limits:
        found = planned(rehearsals=3, batch_sizes=[4, 8], minimize=minimize, **limit)
        assert found.best.name == narrow.name
        missed = [each for each in found.options if each.is_complete and not each.is_feasible]
        assert free.best.name in [each.name for each in missed]
        assert found.chosen_seconds == planned(batch_sizes=[4], strategies=groups(2)).chosen_seconds


def test_next_candidates_are_those_that_may_keep_the_limits() -> None:
    """They are in the order of their predicted objective, and those without a prediction are last."""
    best, left, unknown = (option(2, batch=batch) for batch in (8, 4, 2))
    assert best.candidate is not None
    looks = ((0.0, 0.0, 2.0), (1.0, 0.1, 1.0), (2.0, 0.2, 0.5))
    leader = Leader(
        best.candidate, cast(Any, SimpleNamespace(history=[], seconds=2.0, dollars=0.2)), raced=looks
    )
    one, two, three, four, five = (Candidate(best.setup, SGD(0.1 * lr)) for lr in range(1, 6))
    losers = [Loser(one, 1.6, 1.0), Loser(two, 1.2, 1.0), Loser(three, 9.0, 0.1), Loser(four, 1.0, inf)]
    losers.append(Loser(five, 1.6, 2.5))  # it learned nothing
    request = Request(
        minimize="time", deadline_hours=10 * 1.4 / 1.5 / 3600, budget_dollars=None, share=0.1, rehearsals=1
    )
    times = {best.setup: 1.0, left.setup: 1.3}
    arguments = leader, [best], losers, [unknown.setup, left.setup], times, to_plan()
    found = next_candidates(*arguments, request)
    assert [each if each in {one, two} else each.setup for each in found] == [two, left.setup, unknown.setup]
    found = next_candidates(*arguments, replace(request, deadline_hours=None))
    assert found[:4] == [two, found[1], one, three]
    changed = 0.1 / 3 / rate_of(for_groups(to_plan().optimizer, 2))
    assert found[1].optimizer == scaled(first_optimizer(left.setup, to_plan()), changed)
    assert next_candidates(*arguments, replace(request, budget_dollars=0.1))[0].setup is unknown.setup


def test_job_that_diverges_with_every_candidate_fails() -> None:
    with raises(JobError, "diverges") as caught:
        planned(job=to_plan(optimizer=SGD(1e30)))
    assert len(caught.fields["candidates"]) > 5


def groups(*counts: int) -> Sequence[Groups]:
    return [Groups(Synchronous(), groups=count) for count in counts]


@pytest.mark.parametrize(
    ("settings", "code", "fields"),
    [
        ({"until": "epochs>=3"}, "goal_without_metric", {"given": "epochs>=3"}),
        ({"until": "accuracy>=0.9 or loss<=1"}, "goal_without_metric", {}),
        ({"job": a_job(), "until": "loss<=0.3"}, "no_evaluation_set", {}),
        ({"fleet": FLEET, "minimize": "dollars"}, "no_prices", {}),
        ({"fleet": FLEET, "budget_dollars": 3.0}, "no_prices", {}),
        ({"minimize": "money"}, "invalid_value", {"name": "minimize"}),
        ({"deadline_hours": 0.0}, "invalid_value", {"name": "deadline_hours"}),
        ({"deadline_hours": nan}, "invalid_value", {"name": "deadline_hours"}),
        ({"budget_dollars": -1}, "invalid_value", {"name": "budget_dollars"}),
        ({"share": 1.0}, "invalid_value", {"name": "share"}),
        ({"rehearsals": -1}, "invalid_value", {"name": "rehearsals"}),
        ({"strategies": groups(2, 50)}, "too_few_workers", {"k": 50, "workers": 4}),
        ({"strategies": []}, "invalid_value", {"name": "strategies"}),
        ({"strategies": [AdaptiveK()]}, "not_predictable", {"strategy": "AdaptiveK"}),
        ({"strategies": ["synchronous"]}, "invalid_value", {"name": "strategies"}),
        ({"batch_sizes": [8, 0]}, "invalid_value", {"name": "batch_sizes", "given": 0}),
        ({"batch_sizes": [1000]}, "too_few_samples", {"given": 1000}),
        ({"codecs": ["bf17"]}, "unknown_name", {"nearest": "bf16"}),
        ({"codecs": "bf16"}, "invalid_value", {"name": "codecs"}),
        ({"job": "digits"}, "invalid_value", {"name": "job"}),
        ({"fleet": "fleet.toml"}, "invalid_value", {"name": "fleet"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_arguments_are_rejected(settings: dict[str, Any], code: str, fields: dict[str, Any]) -> None:
    with raises(UsageError, code, **fields):
        planned(**settings)


@pytest.mark.parametrize("after", [1, 40])
def test_signal_ends_the_search_between_two_merges(after: int) -> None:
    """The calls before each merge come often enough. What was found is kept."""
    calls = list[str]()

    def on_progress(text: str) -> None:
        calls.append(text)
        if len(calls) == after:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(PlanInterrupted) as caught:
        planned(rehearsals=100, until="accuracy>=0.97", on_progress=on_progress)
    assert caught.value.signal == signal.SIGTERM
    assert len(calls) == after
    assert caught.value.found.goal.value == 0.97
    assert len([each for each in caught.value.found.options if each.candidate]) == 6


def test_interrupted_rehearsals_leave_a_feasible_plan() -> None:
    rehearsing = list[str]()

    def on_progress(text: str) -> None:
        rehearsing.extend([text] * text.startswith("rehearsing"))
        if len(rehearsing) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(PlanInterrupted) as caught:
        planned(rehearsals=5, on_progress=on_progress)
    best = caught.value.found.best
    assert (best.why, best.is_complete) == ("2 rehearsals", True)


def test_rehearsals_of_a_candidate_that_misses_a_limit_are_not_those_of_the_next() -> None:
    """Ctrl-C comes while the next candidate is followed to the goal."""
    texts = list[str]()

    def on_progress(text: str) -> None:
        texts.append(text.partition(" ")[0])
        if "rehearsing" in texts and texts[-1] not in {"rehearsing", "comparing"}:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(PlanInterrupted) as caught:
        planned(deadline_hours=0.25 / 3600, on_progress=on_progress, rehearsals=3)
    rehearsed = [each.candidate for each in caught.value.found.options if each.why == "3 rehearsals"]
    stopped = [each.candidate for each in caught.value.found.options if each.why.startswith("was stopped")]
    assert (len(rehearsed), len(stopped)) == (1, 1)
    assert rehearsed != stopped


def test_rehearsal_without_machines_does_not_reach_the_goal() -> None:
    """The capacity ends during the rehearsal, and the other purchase options are still compared."""
    gone = replace(ZONE, capacity=Alive(Steps((0.0, 0.05), (4.0, 0.0))))
    bench = Bench(to_plan(), seed=1)
    found = rehearse(bench, groups(2)[0], Fleet([gone]), RunConfig(), GOAL, 3.0, (inf, inf, inf))
    assert (found.seconds, found.dollars) == (inf, inf)
    assert 0 < found.spent_seconds <= 0.05


@pytest.mark.parametrize("end", [1e-3, 0.05, 0.2])
def test_spot_capacity_that_ends_in_the_search_makes_only_spot_infeasible(end: float) -> None:
    """The capacity ends before the first merge, in the comparison, or before the slowest candidate is compared."""
    gone = Fleet([replace(ZONE, capacity=Alive(Steps((0.0, end), (4.0, 0.0))))])
    found = planned(gone, deadline_hours=1.0)
    spot = [each for each in found.options if "ran out of machines" in each.why]
    assert {each.bought for each in spot} == {"spot"}
    assert not any(each.is_feasible for each in spot)
    feasible = {each.bought for each in found.options if each.is_feasible}
    assert feasible == {"on demand", "fill_in"} | ({"spot"} if end == 0.2 else set())


def test_fleet_that_ends_with_every_purchase_option_has_no_plan() -> None:
    """Its only machine is lost in the first task, so nothing is trained."""
    found = planned(Fleet([Machine("m", 0.1, lifetime=Lifetime(0.1, Deterministic()))]))
    assert {each.why for each in found.options} == {"ran out of machines at 0.1 s"}
    with raises(JobError, "no_plan"):
        found.best  # noqa: B018 - raises an error


def test_other_spot_prices_change_the_best_option() -> None:
    spot, demand = (
        option(dollars=Range(1.0, 2.0, 3.0)),
        option(bought="on demand", dollars=Range(2.5, 2.5, 2.5)),
    )
    found = a_plan(spot, demand, minimize="dollars")
    assert [found.best_at(factor).bought for factor in (0.7, 1.0, 1.3)] == ["spot", "spot", "on demand"]
    limited = replace(found, options=[spot], budget_dollars=3.5)
    assert not limited.best_at(1.3).is_feasible
    assert all(isfinite(each) for each in limited.best.dollars or ())
