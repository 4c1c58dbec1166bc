"""Deadlines on Ray: on-demand workers are requested, and are given back when spot workers return."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest

from benchmarks.ray.nodes import Nodes, cluster
from oddlot import Ray, UsageError
from oddlot.core.events import Joined, Leaving, Lost
from oddlot.core.tasks import machine_of
from oddlot.engines.buying_plan import BuyingPlan
from oddlot.engines.ray import purchasing
from oddlot.engines.ray.cluster import fits
from oddlot.engines.ray.purchasing import PLACING_SECONDS, Purchasing, ResourceRequest
from oddlot.machines import Buying
from oddlot.machines.buying import POLICIES, Purchase, Situation, Work
from tests.engines.ray.fake_actors import World, died, world
from tests.engines.ray.scenes import on_ray, scene, slow_job
from tests.transcripts import raises, warns

START_SECONDS = 10.0


@dataclass
class Market:
    """A run of 1,000 samples with 2 workers, and a hub with fake actors. A worker needs a second for a sample."""

    world: World
    merged: float = 0.0
    requests: list[list[dict[str, float]]] = field(default_factory=list)
    """All bundles that were requested from the autoscaler."""
    purchasing: Purchasing = field(init=False)

    def open(self, buying: Buying) -> None:
        plan = BuyingPlan(buying, Work(1_000.0, lambda: self.merged), batch=8)
        self.purchasing = Purchasing(plan, self.world.actors)
        for index in self.purchasing.spot:
            self.world.actors.spawn(index)

    def wait(self, seconds: float, each: float = 1.0) -> None:
        """Advance the clock. Ready workers merge samples and send heartbeats."""
        for _ in range(round(seconds / each)):
            working = [worker for worker in self.world.actors.running.values() if worker.ready]
            self.merged += each * len([worker for worker in working if not worker.noticed])
            self.world.now += each
            self.world.beat(*working)
            self.world.actors.check()
            self.purchasing.decide()

    def running(self, kind: str) -> set[str]:
        """Return the workers of this kind, `w` or `on-demand`."""
        return {machine_of(node) for node in self.world.actors.running if node.startswith(kind)}

    def leave(self) -> None:
        """Let the workers that have notice leave."""
        for worker in [worker for worker in self.world.actors.running.values() if worker.noticed]:
            worker.tasks.clear()
            self.world.answer(worker, self.world.actors._beaten, "leaving")


def at_once(call: Callable[[], None]) -> Future[None]:
    """Call a function now, instead of in a thread."""
    done: Future[None] = Future()
    try:
        call()
        done.set_result(None)
    except ConnectionError as error:
        done.set_exception(error)
    return done


@contextmanager
def market(
    deadline: float, policy: str = "fill_in", now: float = 0.0, merged: float = 0.0, **settings: Any
) -> Iterator[Market]:
    given = {
        "buying": Buying(deadline / 3600, policy),
        "seconds_to_start": START_SECONDS,
        "seconds_per_sample": 1.0,
        **settings,
    }
    requests: list[list[dict[str, float]]] = []
    with (
        world(settings=given) as hub,
        patch.object(purchasing, "in_thread", at_once),
        patch("ray.autoscaler.sdk.request_resources", lambda bundles: requests.append(bundles)),  # noqa: PLW0108 - its parameter has a name,
    ):
        hub.now = now
        made = Market(hub, merged, requests)
        made.open(given["buying"])
        yield made
        made.purchasing.close()


def start(found: Market, *names: str) -> None:
    """Let workers of these machines become ready."""
    for name in names:
        node = next((node for node in found.world.actors.running if machine_of(node) == name), name)
        found.world.start(node, f"node of {name}")
    found.purchasing.decide()


def test_on_demand_workers_fill_in_and_are_given_back() -> None:
    """The work takes 500 s on 2 workers. Without spot nodes, the slack of 300 s is used up after 250 s."""
    with market(800.0) as found:
        found.wait(240.0)
        assert not found.running("on-demand")
        found.wait(20.0)
        assert found.running("on-demand") == {"on-demand1", "on-demand2"}
        start(found, "on-demand1", "on-demand2")
        found.wait(100.0)
        start(found, "w1")
        found.wait(1.0)
        found.leave()
        assert len(found.running("on-demand")) == 1, "one spot worker is missing"
        start(found, "w2")
        found.wait(1.0)
        found.leave()
        found.wait(1.0)
        assert not found.running("on-demand")
        assert {loss.cause for loss in found.world.lost} == {None}


def test_node_request_is_a_limit_for_all_wanted_workers_until_they_are_ready() -> None:
    with market(800.0, num_gpus=0.5, resources={"ssd": 1}) as found:
        bundle = {"CPU": 1, "GPU": 0.5, "ssd": 1, "on_demand": 1}
        found.wait(1.0)
        assert found.requests == [[]], "a request of an earlier run is released"
        found.wait(260.0)
        assert found.requests[1:] == [[bundle, bundle]]
        start(found, "on-demand1")
        found.wait(2.0)
        assert found.requests[2:] == [], "Ray counts the running worker too"
        start(found, "on-demand2")
        found.wait(2.0)
        assert found.requests[2:] == [[]]
        found.world.fail(found.world.actors.running["on-demand2"], died("node"))
        found.wait(2.0)
        assert found.requests[3:] == [[bundle, bundle]]
    assert found.requests[-1] == [], "released at the end of the run"


def test_spot_and_on_demand_workers_need_different_resources() -> None:
    plain = Ray(resources={"ssd": 1})
    assert plain.needs == {"CPU": 1, "GPU": 0, "ssd": 1}
    on = Ray(resources={"ssd": 1, "on_demand": 0.5}, buying=Buying(1.0))
    assert on.needs == {"CPU": 1, "GPU": 0, "ssd": 1, "spot": 1}
    assert on.on_demand_needs == {"CPU": 1, "GPU": 0, "ssd": 1, "on_demand": 0.5}
    nodes = {"CPU": 2, "ssd": 1, "spot": 1}, {"CPU": 2, "ssd": 1, "on_demand": 1}, {"CPU": 2, "ssd": 1}
    assert [fits(on, node) for node in nodes] == [True, True, False]


@pytest.mark.parametrize(
    ("expected", "factor", "bought"), [(1.0, 1.0, False), (1.0, 0.55, True), (4.0, 1.0, False)]
)
def test_measured_speed_decides(expected: float, factor: float, bought: bool) -> None:
    """Workers need a second for a sample, multiplied by `factor`, instead of the `expected` seconds."""
    with market(915.0, seconds_per_sample=expected) as found:
        start(found, "w1", "w2")
        for _ in range(300):
            found.wait(1.0)
            found.merged += (factor - 1.0) * 2
        found.world.fail(found.world.actors.running["w1"], died("node"))
        found.wait(PLACING_SECONDS + 2)
        assert bool(found.running("on-demand")) == bought


def test_work_without_expected_speed_takes_half_of_the_time() -> None:
    with market(800.0, seconds_per_sample=None) as found:
        found.wait(340.0)
        assert not found.running("on-demand")
        found.wait(20.0)
        assert len(found.running("on-demand")) == 2


def test_ready_worker_is_kept_and_waiting_one_is_cancelled() -> None:
    with market(800.0) as found:
        found.wait(260.0)
        start(found, "on-demand2", "w1")
        found.wait(1.0)
        assert found.running("on-demand") == {"on-demand2"}
        assert not found.world.actors.running["on-demand2"].noticed


def test_prices_of_both_kinds_are_billed() -> None:
    with market(560.0, dollars_per_hour=1.0, on_demand_dollars_per_hour=3.0) as found:
        found.wait(PLACING_SECONDS + 2)
        joined: list[Joined] = []
        found.world._collect = lambda: joined.extend(  # type: ignore[method-assign]
            message for message in found.world.actors.messages if isinstance(message, Joined)
        )
        start(found, "w1", "on-demand1")
        assert {event.node: event.dollars_per_hour for event in joined} == {"w1": 1.0, "on-demand1": 3.0}


def test_without_slack_waiting_spot_workers_are_cancelled_and_running_ones_are_kept() -> None:
    with market(540.0) as found:
        start(found, "w1")
        found.wait(PLACING_SECONDS + 30)
        assert found.running("w") == {"w1"}
        assert found.running("on-demand") == {"on-demand1"}


def test_spot_workers_that_start_are_not_replaced() -> None:
    """Even after the deadline, spot nodes that are there are used."""
    with warns("deadline_passed"), market(100.0, now=200.0) as found:
        found.wait(PLACING_SECONDS - 1)
        assert not found.running("on-demand")
        start(found, "w1")
        found.wait(3.0)
        assert found.running("w") == {"w1"}
        assert found.running("on-demand") == {"on-demand1"}


def test_run_continues_on_spot_nodes_if_no_on_demand_node_comes() -> None:
    with market(100.0) as found:
        found.wait(PLACING_SECONDS + 5)
        assert not found.running("w")
        with warns("no_on_demand_node", workers=2):
            found.wait(3 * START_SECONDS)
        assert found.running("w") == {"w1", "w2"}
        start(found, "w1", "w2")
        with warns("deadline_too_short"):
            found.wait(200.0)
        assert found.running("w") == {"w1", "w2"}
        assert not found.running("on-demand")


def test_late_run_is_reported_once_its_speed_is_measured() -> None:
    with market(600.0) as found:
        start(found, "w1", "w2")
        found.wait(9.0)
        found.merged, slow = 0.0, 0.25
        with warns("deadline_too_short"):
            for _ in range(200):
                found.wait(1.0)
                found.merged -= 2 * (1 - slow)
        found.wait(50.0)


def test_deadline_without_any_worker_is_reported_once() -> None:
    with market(60.0, seconds_to_start=100.0) as found:
        found.wait(59.0)
        with warns("deadline_passed"):
            found.wait(100.0)


def test_failed_request_is_repeated() -> None:
    failing = [ConnectionError("no head"), None]

    def request(bundles: object) -> None:
        if error := failing.pop(0):
            raise error

    now = [0.0]
    with patch.object(purchasing, "request", request), patch.object(purchasing, "in_thread", at_once):
        one = ResourceRequest({"CPU": 1.0}, lambda: now[0])
        one.set(2)
        with warns("nodes_not_requested"):
            one.set(2)
        one.set(2)
        assert len(failing) == 1
        now[0] = purchasing.RETRY_SECONDS
        one.set(2)
        assert not failing
        one.set(2)


def test_bad_settings_are_rejected() -> None:
    with raises(UsageError, "buying_without_respawn"):
        Ray(buying=Buying(1.0), respawn=False)
    with raises(UsageError, "invalid_value", name="seconds_per_sample"):
        Ray(seconds_per_sample=0.0)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """Start a cluster with a spot node for two workers and an on-demand node for two workers. The head has no CPU."""
    with cluster(head_cpus=0) as made:
        made.add(2, {"spot": 2})
        made.add(2, {"on_demand": 2})
        made.cluster.wait_for_nodes()
        yield made


class Full:
    """A policy that always replaces missing machines."""

    def decide(self, now: Situation) -> Purchase:
        return Purchase(now.missing)


@pytest.mark.ray
@pytest.mark.filterwarnings("default")
def test_lost_spot_node_is_replaced_on_demand_until_spot_returns(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[int] = []
    plain = purchasing.request

    def request(bundles: Any) -> None:
        plain(bundles)
        requests.append(len(bundles))

    monkeypatch.setattr(purchasing, "request", request)
    monkeypatch.setattr(purchasing, "PLACING_SECONDS", 60.0)
    monkeypatch.setitem(POLICIES, "greedy", Full())
    on = on_ray(
        num_cpus=1,
        buying=Buying(1.0, "greedy", epochs=100),
        dollars_per_hour=1.0,
        on_demand_dollars_per_hour=3.0,
    )
    spot = nodes.alive[0]
    with scene(slow_job(0.05), on) as run:
        run.until(lambda: {"w1", "w2"} <= {*run.host.conductor.slots})
        run.work()
        assert requests == [0]
        monkeypatch.setattr(purchasing, "PLACING_SECONDS", 1.0)
        nodes.kill(spot)
        run.until(lambda: {"on-demand1", "on-demand2"} == {*run.host.conductor.slots})
        run.until(lambda: requests[-1] == 0)
        assert 2 in requests
        run.work()
        nodes.add(2, {"spot": 2})
        for node in ("on-demand1", "on-demand2"):
            run.until(lambda node=node: run.has(Leaving, node) and run.has(Lost, node))  # type: ignore[misc]
        assert {machine_of(node) for node in run.host.conductor.slots} == {"w1", "w2"}
        run.finish()
    events = [record.event for record in run.records]
    prices_of = {machine_of(e.node): e.dollars_per_hour for e in events if isinstance(e, Joined)}
    assert prices_of == {"w1": 1.0, "w2": 1.0, "on-demand1": 3.0, "on-demand2": 3.0}
    assert {e.cause for e in events if isinstance(e, Lost)} == {None}
