"""Timelines of the planner: merges without gradients, versions by time, and strategies without a timeline."""

import pytest

from oddlot import Asynchronous, Gossip, Machine, Strategy, Synchronous, UsageError
from oddlot.core.support.errors import JobError
from oddlot.machines import Alive, Buying, Fleet, Offer, Steps, Zone
from oddlot.planner.timeline import Timeline
from oddlot.run.config import RunConfig
from oddlot.strategies import AdaptiveK, Groups
from tests.fits import BATCH, a_job
from tests.transcripts import raises

MACHINES = [Machine(f"m{number}", 0.01 * (1 + number)) for number in range(4)]


def timeline(strategy: Strategy, fleet: Fleet) -> Timeline:
    return Timeline.of(a_job(), strategy, fleet, RunConfig.of({"evaluate_every": "2 versions"}))


def test_merges_have_times_samples_and_versions() -> None:
    """The slower machine of each group needs 0.03 s and 0.04 s per sample, and has half of the 8 samples."""
    found = timeline(Groups(Synchronous(), groups=2), Fleet(MACHINES))
    found.merge(12)
    assert all(sum(part.samples for part in merge.parts) == BATCH for merge in found.merges[4:])
    assert all(sum(part.share for part in merge.parts) == pytest.approx(1.0) for merge in found.merges)
    assert [merge.is_evaluated for merge in found.merges[:6]] == [False, True] * 3
    times = [merge.seconds for merge in found.merges]
    assert times == sorted(times)
    assert times[-1] - times[4] == pytest.approx(8 / (1 / 0.12 + 1 / 0.16), rel=0.15)
    for version, merge in enumerate(found.merges):
        assert all(merge.oldest <= version + 1 for part in merge.parts)
        assert max(part.task.version for part in merge.parts) <= version
    found.close()


def test_version_at_a_time_is_the_newest() -> None:
    found = timeline(Asynchronous(), Fleet(MACHINES))
    assert found.version_at(0.0) == 0
    for seconds in (0.5, 2.0, 1.0):
        version = found.version_at(seconds)
        assert found.merge(version).seconds <= seconds < found.merge(version + 1).seconds
    found.close()


@pytest.mark.filterwarnings("ignore:.*adapts to gradients")
@pytest.mark.parametrize("strategy", [Gossip(), AdaptiveK()], ids=["mesh", "gradients"])
def test_strategies_that_depend_on_gradients_have_no_timeline(strategy: Strategy) -> None:
    with raises(UsageError, "not_predictable", strategy=type(strategy).__name__):
        timeline(strategy, Fleet(MACHINES))


def test_fleet_without_machines_in_the_future_stalls() -> None:
    offer = Offer("big", dollars_per_hour=1.0, spot_dollars_per_hour=Steps((0.0,), (0.5,)))
    gone = Zone("east", offer, 2, Machine("any", 0.05), Alive(Steps((0.0, 3.0), (2.0, 0.0))))
    found = timeline(Synchronous(), Fleet([gone]))
    with raises(JobError, "stalled"):
        found.merge(1_000)
    assert found.latest(1_000) == found.merges[-1]
    assert found.version_at(1e9) == len(found.merges)
    assert len(found.merges) > 3
    found.close()


def test_buying_policy_needs_the_epochs_of_the_run() -> None:
    """Without them, it would order on-demand machines for a run that never ends."""
    offer = Offer("big", dollars_per_hour=1.0, spot_dollars_per_hour=Steps((0.0,), (0.5,)))
    spot = Zone("east", offer, 2, Machine("any", 0.05), Alive(Steps((0.0, 3.0), (2.0, 1.0))))
    with raises(UsageError, "unknown_work"):
        timeline(Synchronous(), Fleet([spot], buying=Buying(1.0)))
    found = timeline(Synchronous(), Fleet([spot], buying=Buying(1.0, epochs=10)))
    found.merge(40)
    alone = timeline(Synchronous(), Fleet([spot]))
    assert found.merges[39].dollars == alone.merge(40).dollars, "the deadline is far away"
    found.close()
    alone.close()
