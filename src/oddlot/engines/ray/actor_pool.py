"""The workers of a Ray cluster at the hub: `ActorPool` starts, watches and replaces them. `JobEntry` delays the start
of a run until enough workers are ready."""

import logging
import signal
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import Any

import ray

from oddlot.core.events import Joined, Leaving, Lost
from oddlot.core.tasks import NodeId
from oddlot.engines.host import Message
from oddlot.engines.processes.evaluations import Evaluations
from oddlot.engines.processes.node_ids import NodeIds
from oddlot.engines.processes.respawn import EVALUATOR_INDEX, RespawnPolicy
from oddlot.engines.ray import private_api
from oddlot.engines.ray.cluster import waiting_for
from oddlot.engines.ray.handles import ActorHandle, CallResult
from oddlot.engines.ray.losses import Losses
from oddlot.engines.ray.node_calls import NodeCalls, NodeNews
from oddlot.engines.ray.node_functions import send_signal
from oddlot.engines.ray.node_watch import NodeWatch
from oddlot.engines.ray.settings import RaySettings
from oddlot.engines.ray.started_actors import StartedActors
from oddlot.engines.ray.threads import in_thread
from oddlot.engines.ray.worker_actor import CONTROL, Beat, Failure, HubInfo, Started, host
from oddlot.engines.ray.worker_logs import WorkerLogs

TELL_SECONDS = 5.0
"""Seconds with too few workers until a line reports the reason."""
WARN_SECONDS = 30.0
"""Seconds until that line is a warning, even if the workers may still be starting. Scripts show warnings."""
logger = logging.getLogger(__name__)


class JobEntry:
    """Holds workers back until the minimum number of them is ready."""

    def __init__(self, settings: RaySettings, now: float) -> None:
        self.settings = settings
        self._waiting: dict[NodeId, Joined] | None = {}
        """None once the run has started."""
        self._text, self._reported_at, self._since = ("", 0), now, now

    @property
    def has_started(self) -> bool:
        """Return whether the run has started."""
        return self._waiting is None

    def enter(self, joined: Joined) -> list[Joined]:
        """Return the workers that join the run now that this worker is ready."""
        if self._waiting is None:
            return [joined]
        self._waiting[joined.node] = joined
        if len(self._waiting) < self.settings.min_workers:
            return []
        entering, self._waiting = self._waiting, None
        return list(entering.values())

    def lost(self, node: NodeId) -> bool:
        """Return whether a lost worker had not entered yet."""
        return self._waiting is not None and self._waiting.pop(node, None) is not None

    def tell(self, now: float, ready: int, avoided: Collection[str] = ()) -> None:
        """Log why workers are missing, before the start of the run and while no worker is ready, and after changes.

        `avoided` are Ray's ids of nodes that get no workers.
        """
        if ready and self._waiting is None:
            self._text, self._reported_at, self._since = ("", 0), now, now
        if now - self._reported_at < TELL_SECONDS:
            return
        self._reported_at = now
        text, is_missing = waiting_for(self.settings, ready, avoided)
        level = logging.WARNING if is_missing or now - self._since >= WARN_SECONDS else logging.INFO
        if (text, level) != self._text:
            self._text = text, level
            logger.log(level, "%s", text)


KILL_SECONDS = 2.0
"""Longest wait for killed actors to end before they are killed again, in seconds."""
KILLS = 3
"""Number of attempts to kill an actor, because a busy cluster may lose a request."""
BEAT_SECONDS = 1.0
"""Interval of heartbeats, in seconds."""


class ActorPool:
    """Requests actors, receives their heartbeats, and handles their ends.

    `setup` is a reference to the pickled `WorkerSetup`. Results of calls wait in a queue until `hear` handles them.
    """

    def __init__(
        self,
        started: StartedActors,
        ids: NodeIds,
        setup: Any,
        logs: WorkerLogs,
        clock: Callable[[], float],
    ) -> None:
        self.started, self.settings, self.ids, self.setup = started, started.settings, ids, setup
        self.logs, self.clock = logs, clock
        self.policy = RespawnPolicy(len(ids.names), self.settings.respawn)
        for index in filter(self.settings.is_on_demand, range(len(ids.names))):
            self.policy.reserve(index)
        self.evaluations = Evaluations()
        self.evaluator_ready: Callable[[], None] = lambda: None
        """Called when the evaluator is ready."""
        self.running: dict[NodeId, ActorHandle] = {}
        self.not_ended: set[ActorHandle] = set()
        """Actors, including lost actors, until Ray reports their end."""
        self.messages: deque[Message] = deque()
        """Messages for the host."""
        self.news: SimpleQueue[CallResult | NodeNews] = SimpleQueue()
        self.nodes = NodeWatch(
            started.hub_node, self.settings, clock, NodeCalls(self.news, self.settings.runtime_env)
        )
        self.losses = Losses(self.nodes, logs, self.settings.lost_after_seconds, self.running, self.lose)
        self.entrance = JobEntry(self.settings, clock())
        self._host, self._hub = host(), HubInfo.here()
        self._looked = clock()
        self._evaluator_at = inf
        """Time of the next request of the evaluator, or infinity if it is running or not needed."""

    def spawn(self, index: int) -> ActorHandle:
        """Request a worker, or the evaluator. It starts once the cluster has room for it."""
        node = self.ids.next(index)
        avoid = self.nodes.avoided
        actor = self.started.take(index, node, avoid)
        worker = ActorHandle(node, index, self.clock(), actor=actor, avoids=bool(avoid))
        self.running[node] = worker
        self.not_ended.add(worker)
        where = worker.actor.where.options(concurrency_group=CONTROL)
        self.call(worker, partial(self._located, worker), where)
        ready = partial(self._ready, worker)
        self.call(worker, ready, worker.actor.begin, self._hub, index == 0, self.setup)
        self._beat(worker)
        return worker

    def is_running(self, worker: ActorHandle) -> bool:
        """Return whether results of the worker still count."""
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
        self.nodes.call(worker.started.ray_node, lambda _: None, send_signal, worker.started.pid, int(number))

    def bar(self, index: int, barred: bool) -> None:
        """Suspend the replacement of a worker, or allow it again."""
        for worker in self.running.values():
            worker.taken_away = worker.taken_away or (barred and worker.index == index)
        self.policy.bar(index, barred, self.clock())

    def give_back(self, worker: ActorHandle) -> None:
        """End a worker that is no longer needed. If it has tasks, it hands over their finished parts first."""
        if worker.ready and self.entrance.has_started:
            self._give_notice(worker)
        else:
            self.take_away(worker.node)

    def take_away(self, node: NodeId) -> None:
        """Kill a worker, and replace it if it is wanted. This does not count as a failed start."""
        if worker := self.running.get(node):
            worker.taken_away = True
            self.lose(worker)

    def lose(self, worker: ActorHandle) -> None:
        """Count a worker as lost, and kill it, because it may only be unreachable.

        Raise JobError after too many failed starts.
        """
        if not self.is_running(worker):
            return
        del self.running[worker.node]
        if worker.started is None:  # not registered yet: Ray may wait for the head
            in_thread(partial(ray.kill, worker.actor))
        else:
            with suppress(ray.exceptions.RayError, ValueError):
                ray.kill(worker.actor)
        if not worker.has_ended:
            self.signal(worker, signal.SIGKILL)  # a frozen process does not respond to Ray
        busy = bool(self.evaluations.requested if worker.is_evaluator else worker.tasks)
        death = worker.death(bool(worker.tasks), busy)
        if worker.ready and not worker.is_evaluator and not self.entrance.lost(worker.node):
            self.messages.append(Lost(worker.node, death.cause))
        self.policy.died(death, self.clock())
        if worker.is_evaluator:
            self.evaluations.lost()
            self._evaluator_at = self.nodes.rested_at(self.nodes.hub_node)
            self._spawn_evaluator()

    def _spawn_evaluator(self) -> None:
        """Request the evaluator if it is due. It is not requested while its node is short of memory."""
        if self.clock() >= self._evaluator_at:
            self._evaluator_at = inf
            self.spawn(EVALUATOR_INDEX)

    def dismiss(self, worker: ActorHandle) -> None:
        """End a leaving worker once all of its tasks have ended."""
        if worker.leaving and not worker.tasks:
            self.lose(worker)

    def call(self, worker: ActorHandle, then: Callable[[Any], None], method: Any, *arguments: Any) -> None:
        """Call a method of a worker. `then` handles the result unless the worker is lost before."""
        call = method.remote(*arguments)
        worker.calls.add(call)  # without a reference Ray drops the result
        private_api.on_completed(call, lambda answer: self.news.put(CallResult(worker, call, then, answer)))

    def hear(self, news: CallResult | NodeNews) -> None:
        """Handle the result of a call."""
        if isinstance(news, NodeNews):
            news.then(news.answer)
            return
        worker = news.worker
        worker.calls.discard(news.call)
        self._note_end(news)
        if not self.is_running(worker):
            return
        if isinstance(news.answer, BaseException):
            self.losses.died(worker, news.answer)
            return
        worker.heard = self.clock()
        news.then(news.answer)

    def fail(self, worker: ActorHandle, failure: Failure) -> None:
        """Raise the error of a worker, or exclude its node because of it."""
        self.losses.failed(worker, failure)

    def check(self) -> None:
        """Request replacements that are due, end silent workers, and log why workers are missing."""
        now = self.clock()
        pause, self._looked = now - self._looked, now
        for worker in list(self.running.values()):
            self.losses.check(worker, pause, BEAT_SECONDS)
        if self.nodes.forgive():
            self._request_again()
        for index in self.policy.due(now):
            self.spawn(index)
        self._spawn_evaluator()
        self._warn_drained()
        ready = sum(worker.ready for worker in self.running.values() if not worker.is_evaluator)
        self.entrance.tell(now, ready, self.nodes.avoided)

    def _request_again(self) -> None:
        """Request waiting actors again that avoid nodes, because one of these nodes may be used again."""
        for worker in list(self.running.values()):
            if worker.avoids and not worker.ready:
                worker.taken_away = True
                self.lose(worker)

    def close(self) -> None:
        """Kill all actors, and wait until they have ended, unless the cluster does not respond."""
        self.nodes.close()
        for _ in range(KILLS):
            if not self.kill() or self._have_ended():
                return

    def kill(self) -> bool:
        """Kill all actors. Return whether the cluster has responded. Any thread may call this."""
        workers = list(self.not_ended)
        kills = [in_thread(partial(ray.kill, worker.actor)) for worker in workers]
        responded = not wait(kills, KILL_SECONDS).not_done
        for worker in workers:
            if worker.started is not None and worker.started.host == self._host:
                send_signal(worker.started.pid, signal.SIGKILL)  # its process may outlive its actor
        return responded

    def _have_ended(self) -> bool:
        """Wait for `KILL_SECONDS` at most until all actors have ended. Return whether they have."""
        until = self.clock() + KILL_SECONDS
        while self.not_ended and (left := until - self.clock()) > 0:
            try:
                news = self.news.get(timeout=left)
            except Empty:
                break
            if isinstance(news, CallResult):
                self._note_end(news)
        return not self.not_ended

    def _note_end(self, news: CallResult) -> None:
        # After other errors it may only be unreachable.
        if isinstance(news.answer, ray.exceptions.ActorDiedError):
            self.not_ended.discard(news.worker)

    # --- results of workers --------------------------------------------------------------------

    def _beat(self, worker: ActorHandle) -> None:
        beat = worker.actor.beat.options(concurrency_group=CONTROL)
        self.call(worker, partial(self._beaten, worker), beat, BEAT_SECONDS)

    def _beaten(self, worker: ActorHandle, beat: Beat) -> None:
        self._beat(worker)
        if beat == "node_lost":
            self.losses.lose_node(worker)
        elif beat == "leaving" and not worker.is_evaluator:
            worker.leaving = True
            if worker.ready:
                self.messages.append(Leaving(worker.node))
            self.dismiss(worker)

    def _located(self, worker: ActorHandle, started: Started) -> None:
        worker.started = started

    def _ready(self, worker: ActorHandle, started: Started | Failure) -> None:
        if isinstance(started, Failure):
            self.fail(worker, started)
            return
        worker.ready, worker.started = True, started
        if worker.is_evaluator:
            self.evaluator_ready()
            return
        self.losses.was_ready = True
        self.messages.extend(self.entrance.enter(Joined(worker.node, self._price_of(worker))))

    def _price_of(self, worker: ActorHandle) -> float:
        on_demand = self.settings.is_on_demand(worker.index)
        return self.settings.on_demand_dollars_per_hour if on_demand else self.settings.dollars_per_hour

    def _warn_drained(self) -> None:
        """Give notice to the workers of drained nodes, once."""
        for worker in self.running.values():
            if self.nodes.must_leave(worker) and not worker.noticed and not worker.is_evaluator:
                self._give_notice(worker)

    def _give_notice(self, worker: ActorHandle) -> None:
        worker.noticed = True
        self.control(worker.node, "leave")
