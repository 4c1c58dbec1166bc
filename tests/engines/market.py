"""Runs on simulated zones, without computation by default, with a check of their costs."""

from dataclasses import replace
from typing import Any

import pytest

from oddlot import Asynchronous, Job, Machine, Simulated, Strategy, fit
from oddlot.core.events import Resumed
from oddlot.history.log import surviving
from oddlot.history.metrics import tally_of
from oddlot.machines import Alive, Always, Buying, Hub, Offer, Steps, Zone
from oddlot.machines.capacity import Capacity
from oddlot.report.timeline import RunTimeline
from oddlot.run.result import Run
from tests.engines.log import events, records_of
from tests.fits import SAMPLES, a_job

LIKE = Machine("any", seconds_per_sample=0.05)
"""A machine that needs 0.4 s for a batch of 8."""
OFFER = Offer("big", dollars_per_hour=3600.0, spot_dollars_per_hour=Steps((0.0,), (360.0,)))
"""An offer for 0.1 dollars per second on the spot market, and 1 dollar per second on demand."""


def alive(*moves: tuple[float, float], period: float | None = None) -> Alive:
    """Return a capacity with changes `(seconds, count)`."""
    seconds, counts = zip(*moves, strict=True)
    return Alive(Steps(seconds, counts, period))


def zone(
    capacity: Capacity = Always(),  # noqa: B008 - plain data
    count: int = 2,
    name: str = "east",
    like: Machine = LIKE,
    prices: Steps = OFFER.spot_dollars_per_hour,  # type: ignore[assignment]  # not None
    **offer: float,
) -> Zone:
    changes: dict[str, Any] = {"spot_dollars_per_hour": prices, **offer}
    return Zone(name, replace(OFFER, **changes), count, like, capacity)


def run(
    *fleet: Machine | Zone,
    until: str = "epochs>=1",
    hub: Hub = Hub(),  # noqa: B008 - plain data
    computes: bool = False,
    strategy: Strategy | None = None,
    job: Job | None = None,
    buying: Buying | None = None,
    **options: Any,
) -> Run:
    """Return a run, after checking that log, summary and machines report the same costs."""
    on = Simulated(fleet, hub=hub, computes=computes, buying=buying)
    found = fit(job or a_job(), strategy or Asynchronous(), on, until=until, **options)
    tally, resumed = tally_of(found.records, SAMPLES), events(found.records, Resumed)
    assert tally.dollars == pytest.approx(found.dollars)
    assert tally.seconds == pytest.approx(found.summary["seconds"])
    lost = sum(event.dollars_lost - event.dollars_of_hub_lost for event in resumed)
    machines = sum(
        lane.dollars for lane in RunTimeline.of(surviving(found.records), SAMPLES).by_machine.values()
    )
    assert machines + tally.cost.dollars_of_hub + lost == pytest.approx(found.dollars)
    return found


def when(found: Run, *kinds: type) -> list[tuple[float, str]]:
    """Return the times and nodes of events of these kinds."""
    return [(round(record.now, 6), record.event.node) for record in records_of(found.records, *kinds)]
