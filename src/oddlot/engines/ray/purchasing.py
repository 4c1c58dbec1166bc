"""Carries out a buying policy on a Ray cluster: requests on-demand nodes for workers, and gives them back."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace

from oddlot.core.support.text import duration
from oddlot.core.support.user_warnings import warn
from oddlot.core.tasks import NodeId
from oddlot.engines.buying_plan import BuyingPlan, Progress
from oddlot.engines.ray.actor_pool import ActorPool
from oddlot.engines.ray.handles import ActorHandle
from oddlot.engines.ray.settings import ON_DEMAND, RaySettings
from oddlot.engines.ray.threads import in_thread
from oddlot.machines.buying import Situation

DECISION_SECONDS = 0.5
"""Longest time between two decisions, in seconds: two checks of the engine."""
ASSUMED_SHARE = 0.5
"""Share of the time to the deadline that the work is assumed to take, until its speed is known."""
PLACING_SECONDS = 30.0
"""Seconds until a spot worker without a process counts as waiting for a node. Workers import PyTorch first."""
AVERAGED_STARTS = 4
"""Number of starts in the moving average of their times."""
LATE_STARTS = 3.0
"""Number of times that a start takes, until an on-demand worker without a node is late."""
RETRY_SECONDS = 10.0
"""Seconds until a failed request of resources is repeated."""
CLOSE_SECONDS = 2.0
"""Longest wait until requested resources are released at the end of a run, in seconds."""
Bundle = Mapping[str, float]


class ResourceRequest:
    """The number of equal bundles that the cluster must have room for, in total. Its autoscaler then adds nodes.

    Ray keeps the request until it is replaced, even after the end of this process.
    """

    def __init__(self, needs: Bundle, clock: Callable[[], float]) -> None:
        amounts = {kind: amount for kind, amount in needs.items() if amount}
        self.bundle = {
            kind: int(amount) if amount == int(amount) else amount for kind, amount in amounts.items()
        }
        self.clock = clock
        self.sent: int | None = None
        """Number of bundles of the last request, or None if there was no request."""
        self._call: Future[None] | None = None
        self._retry_at = 0.0

    def set(self, number: int) -> None:
        """Request this number of bundles, unless it is already requested or the last call has not returned."""
        if self._call is not None and not self._call.done():
            return
        error = None if self._call is None else self._call.exception()
        if error is not None:
            message = f"Ray did not accept the request for {ON_DEMAND} nodes, and it is repeated: {error}"
            warn(message, "nodes_not_requested", reason=str(error))
            self.sent, self._call, self._retry_at = None, None, self.clock() + RETRY_SECONDS
        if number != self.sent and self.clock() >= self._retry_at:
            self.sent = number
            self._call = in_thread(lambda: request([self.bundle] * number))

    def close(self) -> None:
        """Release the requested resources, unless the cluster does not respond."""
        if self._call is not None:
            wait([self._call], CLOSE_SECONDS)
        if self.sent != 0:
            wait([in_thread(lambda: request([]))], CLOSE_SECONDS)


def request(bundles: Sequence[Bundle]) -> None:
    """Replace the resources that are requested from the autoscaler, for all programs of the cluster."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[dict(bundle) for bundle in bundles])


class Purchasing:
    """Decides at every check of the engine. Requests on-demand workers and gives them back, and cancels spot workers.

    A machine of the policy is a worker. It starts if its process runs, or if it was requested just now.
    """

    def __init__(self, plan: BuyingPlan, actors: ActorPool) -> None:
        settings = actors.settings
        self.plan, self.actors, self.clock = plan, actors, actors.clock
        self.spot = range(settings.max_workers)
        self.on_demand = range(settings.max_workers, 2 * settings.max_workers)
        self.wanted = set[int]()
        """On-demand workers that are wanted."""
        self.takes_spot = True
        """Whether the policy orders spot machines."""
        self.request = ResourceRequest(settings.on_demand_needs, self.clock)
        self.progress = Progress(plan, self.clock(), _full_speed(settings, plan), 0.0, is_upper=False)
        self.late_seconds = LATE_STARTS * settings.seconds_to_start
        """Seconds until an on-demand worker without a node is late."""
        self.seconds_to_start = settings.seconds_to_start
        """Moving average of the seconds from the request of an on-demand worker until it is ready."""
        self._started = set[NodeId]()
        """On-demand workers with a measured start."""
        self._has_warned_of_deadline = plan.check(self.clock(), needed=0.0)
        self._has_warned_of_nodes = False

    def decide(self) -> None:
        """Apply the decision of the policy."""
        now = self.clock()
        self.progress.count(now)
        self._measure_starts(now)
        purchase = self.plan.buying.decide(self._situation(now))
        self.takes_spot = purchase.takes_spot
        self._want(purchase.on_demand, now)
        is_late = self._is_late(now)  # without on-demand nodes, the run needs spot nodes
        self._take_spot(purchase.takes_spot or is_late, now)
        self._request_nodes()
        self._count_ready()
        self._warn_of_deadline(now)

    def close(self) -> None:
        """Release the requested resources."""
        self.request.close()

    # --- workers -------------------------------------------------------------------------------

    @property
    def _working(self) -> dict[int, ActorHandle]:
        """Return the workers that are requested or running, by index."""
        return {worker.index: worker for worker in self.actors.running.values()}

    def _is_ready(self, worker: ActorHandle | None) -> bool:
        return worker is not None and worker.ready and _stays(worker)

    def _situation(self, now: float) -> Situation:
        changeover = self.seconds_to_start + self.progress.task_seconds
        working = self._working
        spot = [worker for index in self.spot if (worker := working.get(index)) and _stays(worker)]
        return replace(
            self.progress.situation(now, DECISION_SECONDS, changeover, len(self.spot)),
            spot_ready=sum(worker.ready for worker in spot),
            spot=sum(not self._waits(worker, now) for worker in spot),
            on_demand=len(self.wanted),
            takes_spot=self.takes_spot,
        )

    def _want(self, number: int, now: float) -> None:
        """Request on-demand workers, and give others back. Running workers are kept if possible."""
        if number == len(self.wanted):
            return
        working = self._working
        ranked = sorted(
            self.on_demand,
            key=lambda index: (
                index not in self.wanted,
                not self._is_ready(working.get(index)),
                index in working,
            ),
        )
        wanted = set(ranked[:number])
        for index in self.on_demand:
            self.actors.policy.want(index, index in wanted, now)
            if index in self.wanted - wanted and index in working:
                self.actors.give_back(working[index])
        self.wanted = wanted

    def _take_spot(self, takes: bool, now: float) -> None:
        """Request missing spot workers, or cancel the requests of spot workers that wait for a node."""
        working = self._working
        for index in self.spot:
            self.actors.policy.want(index, takes, now)
            if not takes and index in working and self._waits(working[index], now):
                self.actors.take_away(working[index].node)

    def _request_nodes(self) -> None:
        """Request room for the on-demand workers until all are ready. After that, they keep their nodes busy."""
        working = self._working
        are_ready = all(self._is_ready(working.get(index)) for index in self.wanted)
        self.request.set(0 if are_ready else len(self.wanted))

    def _waits(self, worker: ActorHandle, now: float) -> bool:
        """Return whether a worker waits for a node."""
        return worker.started is None and now - worker.since >= PLACING_SECONDS

    # --- measurements and warnings -------------------------------------------------------------

    def _count_ready(self) -> None:
        """Count the workers that compute until the next decision."""
        ready = sum(map(self._is_ready, self._working.values()))
        computing = ready if self.actors.entrance.has_started else 0
        self.progress.ready_speed = self.progress.full_speed * computing / len(self.spot)

    def _measure_starts(self, now: float) -> None:
        for index, worker in self._working.items():
            if index in self.on_demand and worker.ready and worker.node not in self._started:
                self._started.add(worker.node)
                self.seconds_to_start += (now - worker.since - self.seconds_to_start) / AVERAGED_STARTS

    def _is_late(self, now: float) -> bool:
        """Return whether on-demand workers have waited long for a node. Warn the first time."""
        wanted = (self._working.get(index) for index in self.wanted)
        waits = [now - worker.since for worker in wanted if worker and worker.started is None]
        is_late = max(waits, default=0.0) > max(self.late_seconds, LATE_STARTS * self.seconds_to_start)
        if is_late and not self._has_warned_of_nodes:
            self._has_warned_of_nodes = True
            message = (
                f"no node with the resource {ON_DEMAND} has had room for a worker for {duration(max(waits))}. The run "
                f"continues on spot nodes, and may miss its deadline. Add nodes with {ON_DEMAND}, or such a node type "
                "of the autoscaler"
            )
            warn(message, "no_on_demand_node", seconds=max(waits), workers=len(waits))
        return is_late

    def _warn_of_deadline(self, now: float) -> None:
        """Warn once if the deadline has passed, or if the measured speed is too low for it."""
        if not self._has_warned_of_deadline:
            needed = self.progress.measured_seconds_needed
            self._has_warned_of_deadline = self.plan.check(now, needed or 0.0)


def _stays(worker: ActorHandle) -> bool:
    """Return whether a worker has not been told to leave."""
    return not (worker.leaving or worker.noticed)


def _full_speed(settings: RaySettings, plan: BuyingPlan) -> float:
    """Return the assumed samples per second of all workers."""
    if settings.seconds_per_sample is not None:
        return settings.max_workers / settings.seconds_per_sample
    return plan.work.samples / (ASSUMED_SHARE * plan.buying.deadline_seconds)
