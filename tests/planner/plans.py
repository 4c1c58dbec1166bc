"""A small job and fleets to plan, and made-up plans."""

from dataclasses import replace
from typing import Any

from oddlot import SGD, Groups, Job, Machine, Synchronous, accuracy
from oddlot.core.strategy import Strategy
from oddlot.history.goals import Term
from oddlot.machines import Fleet, Lognormal, Offer, Steps, Zone
from oddlot.planner.candidates import Candidate, Setup
from oddlot.planner.plan import Plan
from oddlot.planner.plan_options import PlanOption, Range
from oddlot.wire.codec import Codec
from tests.fits import a_job, rows

GOAL = Term("accuracy", ">=", 0.9)
FLEET = Fleet([Machine(f"m{number}", 0.01, delay=Lognormal(0.8)) for number in range(4)])
PRICED = Fleet([replace(one, dollars_per_hour=36.0) for one in FLEET.machines if isinstance(one, Machine)])
OFFER = Offer("big", dollars_per_hour=36.0, spot_dollars_per_hour=Steps((0.0,), (9.0,)))
ZONE = Zone("east", OFFER, 4, Machine("any", 0.01, delay=Lognormal(0.8)))
SPOT = Fleet([ZONE])

SECONDS, DOLLARS = Range(10.0, 12.0, 15.0), Range(1.0, 2.0, 3.0)


def to_plan(**changes: Any) -> Job:
    """Return a job with evaluation data."""
    return a_job(eval_data=rows(), metrics={"accuracy": accuracy}, **changes)


def option(
    groups: int = 2,
    bought: str = "spot",
    seconds: Range | None = SECONDS,
    dollars: Range | None = DOLLARS,
    *,
    strategy: Strategy | None = None,
    batch: int = 8,
    codec: Codec | None = None,
    **fields: Any,
) -> PlanOption:
    """Return a rehearsed, feasible option."""
    setup = Setup(strategy or Groups(Synchronous(), groups=groups), batch, codec)
    known: dict[str, Any] = {"is_complete": True, "is_feasible": True, "why": "3 rehearsals"}
    known |= {"curve": ((0.0, 0.0, 2.3), (6.0, 1.0, 1.1), (12.0, 2.0, 0.4))}
    known |= {"candidate": Candidate(setup, SGD(0.1 / 3, momentum=-0.2))}
    return PlanOption(setup, bought, seconds=seconds, dollars=dollars, **known | fields)


def a_plan(*options: PlanOption, **fields: Any) -> Plan:
    """Return a plan with these options."""
    return replace(Plan(GOAL, "time", options), **fields)
