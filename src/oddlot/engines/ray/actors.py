"""The workers of a Ray cluster as the hub sees them: started, watched and replaced."""

import logging
import signal
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy, NotIn

from oddlot.core.errors import JobError
from oddlot.core.events import Joined, Leaving, Lost
from oddlot.core.tasks import NodeId, TaskId
from oddlot.core.user_warnings import warn
from oddlot.engines.evaluations import Evaluations
from oddlot.engines.failure import failure_of
from oddlot.engines.host import Message
from oddlot.engines.node_ids import NodeIds
from oddlot.engines.ray import internals
from oddlot.engines.ray.actor import (
    CONTROL,
    CONTROL_THREADS,
    TASK_THREADS,
    Beat,
    Failure,
    Hub,
    Started,
    WorkerActor,
    host,
    send_signal,
)
from oddlot.engines.ray.cluster import put, waiting_for
from oddlot.engines.ray.pieces import pieces_of
from oddlot.engines.ray.worker_logs import WorkerLogs
from oddlot.engines.respawn import EVALUATOR_INDEX, RespawnPolicy
from oddlot.engines.worker_state import WorkerState
from oddlot.train.flat_buffer import FlatBuffer

if TYPE_CHECKING:
    from oddlot.engines.ray.config import Ray

BEAT_SECONDS = 1.0
"""Interval of heartbeats, in seconds."""
DRAIN_SECONDS = 1.0
"""Interval at which the cluster is asked for nodes that are drained, in seconds."""
SUSPECT_SECONDS = 90.0
"""Seconds after which a node that seemed to be lost gets workers again, unless Ray has noticed a loss."""
TELL_SECONDS = 5.0
"""Seconds without enough workers after which a line says what the run waits for."""
logger = logging.getLogger(__name__)


class Published:
    """Weights in the object store. They are removed with the last reference to this."""

    def __init__(self, weights: FlatBuffer) -> None:
        self.ref = put(pieces_of(weights.memory.numpy()))


class OpenTask(NamedTuple):
    """A task that was sent to a worker."""

    published: Published
    """The weights that it reads."""
    weights: FlatBuffer
    """The same weights at the hub."""


@dataclass(slots=True, eq=False, kw_only=True)
class ActorHandle(WorkerState):
    """A worker, from the request for its actor to its end."""

    actor: Any
    heard: float | None = None
    """Time of its last sign of life. None: it has not started."""
    started: Started | None = None
    noticed: bool = False
    """Whether it was told that its node is drained."""
    calls: set[Any] = field(default_factory=set)
    """References to the answers that are to come."""
    tasks: dict[TaskId, OpenTask] = field(default_factory=dict)

    def is_on(self, node: str) -> bool:
        """Return whether it is on the node with this id of Ray's."""
        return self.started is not None and self.started.ray_node == node


class StartedActors:
    """Actors that were requested before the run had ids for its workers."""

    def __init__(self, on: "Ray") -> None:
        self.on = on
        self.hub_node: str = ray.get_runtime_context().get_node_id()
        remote = ray.remote(
            max_restarts=0,  # which samples are computed again is the ledger's to say
            max_task_retries=0,
            max_concurrency=TASK_THREADS,
            concurrency_groups={CONTROL: CONTROL_THREADS},
        )
        self._class = remote(WorkerActor)
        self._early = [self._request(name) for name in on.names]

    def take(self, index: int, name: str, avoid: Collection[str] = ()) -> Any:
        """Return an actor for the worker `index`: the first time the one that was requested early.

        `avoid` are Ray's ids of nodes on which it must not be.
        """
        if index == EVALUATOR_INDEX:
            return self._class.options(
                num_cpus=0,
                runtime_env=dict(self.on.runtime_env or {}),
                scheduling_strategy=NodeAffinitySchedulingStrategy(self.hub_node, soft=False),
            ).remote(name)
        actor, self._early[index] = self._early[index], None
        return actor or self._request(name, avoid)

    def close(self) -> None:
        """Kill the actors that were not taken."""
        for actor in filter(None, self._early):
            ray.kill(actor)

    def _request(self, name: str, avoid: Collection[str] = ()) -> Any:
        """Request an actor. It waits in Ray until the cluster has room for it. The hub's node comes last."""
        on = self.on
        hard = {"ray.io/node-id": NotIn(*avoid)} if avoid else {}
        return self._class.options(
            num_cpus=on.num_cpus,
            num_gpus=on.num_gpus,
            resources=dict(on.resources or {}),
            runtime_env=dict(on.runtime_env or {}),
            scheduling_strategy=NodeLabelSchedulingStrategy(
                hard, soft={"ray.io/node-id": NotIn(self.hub_node)}
            ),
        ).remote(name)


class News(NamedTuple):
    """An answer of a worker, which a thread of Ray's has received."""

    worker: ActorHandle
    call: Any
    """Reference to the answer."""
    then: Callable[[Any], None]
    """Handles the answer."""
    answer: Any
    """An exception if the worker could not give one."""


class Actors:
    """Requests actors, hears their signs of life, and handles their ends.

    `setup` is a reference to the pickled `Setup`. Answers wait in a queue until `hear` handles them.
    """

    def __init__(
        self,
        on: "Ray",
        started: StartedActors,
        ids: NodeIds,
        setup: Any,
        logs: WorkerLogs,
        clock: Callable[[], float],
    ) -> None:
        self.on, self.started, self.ids, self.setup, self.logs, self.clock = (
            on,
            started,
            ids,
            setup,
            logs,
            clock,
        )
        self.policy = RespawnPolicy(on.max_workers, on.respawn)
        self.evaluations = Evaluations()
        self.evaluator_ready: Callable[[], None] = lambda: None
        """Called when the evaluator is ready."""
        self.running: dict[NodeId, ActorHandle] = {}
        self.messages: deque[Message] = deque()
        """For the host."""
        self.news: SimpleQueue[News] = SimpleQueue()
        self.draining: Mapping[str, float] = {}
        """Ray's ids of the nodes that are drained."""
        self.suspects: dict[str, float] = {}
        """Ray's ids of nodes that seem to be lost, with the time since when. Ray needs up to a minute to notice."""
        self._entering: list[Message] | None = []
        """Workers that are ready before the run starts. None: it has started."""
        self._host, self._hub = host(), Hub.here()
        self._looked = self._told_at = clock()
        self._told = ""
        self._ended = threading.Event()
        threading.Thread(target=self._watch_nodes, name="oddlot draining nodes", daemon=True).start()

    def spawn(self, index: int) -> None:
        """Request a worker, or the evaluator. It is heard from once the cluster has room for it."""
        node = self.ids.next(index)
        worker = ActorHandle(
            node, index, self.clock(), actor=self.started.take(index, node, self.suspects.keys())
        )
        self.running[node] = worker
        ready = partial(self._ready, worker)
        self.call(worker, ready, worker.actor.begin, self._hub, max(index, 0), self.setup)
        self._beat(worker)

    def is_running(self, worker: ActorHandle) -> bool:
        """Return whether the worker's answers still count."""
        return self.running.get(worker.node) is worker

    def control(self, node: NodeId, method: str, *arguments: Any) -> None:
        """Call a method of a worker that may be computing."""
        if worker := self.running.get(node):
            getattr(worker.actor, method).options(concurrency_group=CONTROL).remote(*arguments)

    def signal(self, worker: ActorHandle, number: signal.Signals) -> None:
        """Send a signal to a worker's process."""
        if worker.started is None:
            return
        if worker.started.host == self._host:
            send_signal(worker.started.pid, number)
            return
        there = NodeAffinitySchedulingStrategy(worker.started.ray_node, soft=False)
        ray.remote(send_signal).options(num_cpus=0, scheduling_strategy=there, max_retries=0).remote(
            worker.started.pid, int(number)
        )

    def bar(self, index: int, barred: bool) -> None:
        """Set whether the worker stays away once it has ended."""
        for worker in self.running.values():
            worker.taken_away = worker.taken_away or (barred and worker.index == index)
        self.policy.bar(index, barred, self.clock())

    def take_away(self, node: NodeId) -> None:
        """End a worker that hangs, and replace it. This is not a failed start."""
        if worker := self.running.get(node):
            worker.taken_away = True
            self.lose(worker)

    def lose(self, worker: ActorHandle) -> None:
        """Count a worker as lost, and kill it: it may only be unreachable. Raise JobError after failed starts."""
        if not self.is_running(worker):
            return
        del self.running[worker.node]
        with suppress(ray.exceptions.RayError, ValueError):
            ray.kill(worker.actor)
        self.signal(worker, signal.SIGKILL)  # a frozen process hears nothing of Ray
        busy = bool(self.evaluations.requested if worker.is_evaluator else worker.tasks)
        death = worker.death(bool(worker.tasks), busy)
        if worker.ready and not worker.is_evaluator:
            self.messages.append(Lost(worker.node, death.cause))
        self.policy.died(death, self.clock())
        if worker.is_evaluator:
            self.evaluations.lost()
            self.spawn(EVALUATOR_INDEX)

    def dismiss(self, worker: ActorHandle) -> None:
        """End a leaving worker once it has answered all tasks."""
        if worker.leaving and not worker.tasks:
            self.lose(worker)

    def call(self, worker: ActorHandle, then: Callable[[Any], None], method: Any, *arguments: Any) -> None:
        """Call a method of a worker. `then(answer)` handles the answer unless the worker is lost before."""
        call = method.remote(*arguments)
        worker.calls.add(call)  # without a reference there is no answer
        internals.on_completed(call, lambda answer: self.news.put(News(worker, call, then, answer)))

    def hear(self, news: News) -> None:
        """Handle an answer."""
        worker = news.worker
        worker.calls.discard(news.call)
        if not self.is_running(worker):
            return
        if isinstance(news.answer, BaseException):
            self.died(worker, news.answer)
            return
        worker.heard = self.clock()
        news.then(news.answer)

    def died(self, worker: ActorHandle, error: BaseException) -> None:
        """Handle an error of Ray's in place of an answer: the worker is lost."""
        if isinstance(error, ray.exceptions.RuntimeEnvSetupError):
            raise JobError(
                f"the runtime environment cannot be set up: {error}", "runtime_env_failed", reason=str(error)
            )
        if getattr(error, "actor_init_failed", False) or isinstance(error, ray.exceptions.RayTaskError):
            told = f"the worker {worker.node} did not start. Is oddlot installed on all nodes?\n{error}"
            raise JobError(told, "worker_not_started", node=worker.node, reason=str(error))
        if isinstance(error, ray.exceptions.ActorUnavailableError):
            self._suspect(worker)
        worker.exit_code = self.logs.keep(worker.node, worker.started)
        if "out of memory" in str(error).lower() or "(oom)" in str(error).lower():
            told = f"Ray killed {worker.node}, because its node was running out of memory"
            warn(
                f"{told}. Use fewer workers on a node (a larger num_cpus)",
                "worker_out_of_memory",
                node=worker.node,
            )
        self.lose(worker)

    def _suspect(self, worker: ActorHandle) -> None:
        """Start no further workers on the node of this one, unless another one of it has just been heard."""
        if worker.started is None or worker.started.ray_node == self.started.hub_node:
            return
        node, recent = worker.started.ray_node, self.clock() - 2 * BEAT_SECONDS
        others = [one for one in self.running.values() if one is not worker and one.is_on(node)]
        if not any(one.heard is not None and one.heard > recent for one in others):
            self.suspects.setdefault(node, self.clock())

    def fail(self, worker: ActorHandle, failure: Failure) -> None:
        """Raise the error of a worker, and keep the end of its output."""
        self.logs.write(worker.node, failure.log)
        raise failure_of(worker.node, failure.error)

    def check(self) -> None:
        """Replace workers that are due, end those that are silent, and say what the run waits for."""
        now = self.clock()
        pause = now - self._looked
        self._looked = now
        for worker in list(self.running.values()):
            if worker.heard is None:
                continue
            if pause > BEAT_SECONDS:  # the hub was away itself
                worker.heard += pause
            if now - worker.heard > self.on.lost_after_seconds:
                told = f"{worker.node} has given no sign of life for {self.on.lost_after_seconds:g} s and is replaced"
                warn(told, "worker_silent", node=worker.node, seconds=self.on.lost_after_seconds)
                worker.taken_away = True
                self._suspect(worker)
                self.lose(worker)
        for node, since in list(self.suspects.items()):
            if now - since > SUSPECT_SECONDS:  # Ray would have noticed
                del self.suspects[node]
        for index in self.policy.due(now):
            self.spawn(index)
        self._warn_drained()
        self._tell(now)

    def close(self) -> None:
        """Kill all actors."""
        self._ended.set()
        for worker in self.running.values():
            with suppress(ray.exceptions.RayError, ValueError):
                ray.kill(worker.actor)

    # --- what workers tell ---------------------------------------------------------------------

    def _beat(self, worker: ActorHandle) -> None:
        beat = worker.actor.beat.options(concurrency_group=CONTROL)
        self.call(worker, partial(self._beaten, worker), beat, BEAT_SECONDS)

    def _beaten(self, worker: ActorHandle, beat: Beat) -> None:
        if beat == "node_lost":
            worker.taken_away = True
            if worker.started is not None:
                self.suspects[worker.started.ray_node] = self.clock()
            self.lose(worker)
            return
        self._beat(worker)
        if beat == "leaving" and worker.ready and not worker.is_evaluator and not worker.leaving:
            worker.leaving = True
            self.messages.append(Leaving(worker.node))
            self.dismiss(worker)

    def _ready(self, worker: ActorHandle, started: Started | Failure) -> None:
        if isinstance(started, Failure):
            self.fail(worker, started)
            return
        worker.ready, worker.started = True, started
        if worker.is_evaluator:
            self.evaluator_ready()
            return
        joined = Joined(worker.node, self.on.dollars_per_hour)
        if self._entering is None:
            self.messages.append(joined)
            return
        self._entering.append(joined)
        if len(self._entering) >= self.on.min_workers:
            self.messages.extend(self._entering)
            self._entering = None

    def _tell(self, now: float) -> None:
        """Say what the run waits for, once and again if it changes."""
        if self._entering is None or now - self._told_at < TELL_SECONDS:
            return
        self._told_at = now
        if (told := waiting_for(self.on, len(self._entering))) != self._told:
            self._told = told
            logger.info("%s", told)

    # --- nodes that are drained ----------------------------------------------------------------

    def _watch_nodes(self) -> None:
        """Ask for drained nodes now and then, in a thread of its own: the cluster's head may not answer."""
        while not self._ended.wait(DRAIN_SECONDS):
            with suppress(Exception):  # it is asked again
                self.draining = internals.draining_nodes()

    def _warn_drained(self) -> None:
        """Give notice to the workers of drained nodes, once."""
        for worker in self.running.values():
            there = any(worker.is_on(node) for node in self.draining)
            if there and not worker.noticed and not worker.is_evaluator:
                worker.noticed = True
                self.control(worker.node, "leave")
