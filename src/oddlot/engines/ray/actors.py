"""The workers of a Ray cluster as the hub sees them: started, watched and replaced."""

import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

import ray

from oddlot.core.errors import JobError
from oddlot.core.events import Joined, Leaving, Lost
from oddlot.core.tasks import NodeId
from oddlot.core.user_warnings import warn
from oddlot.engines.evaluations import Evaluations
from oddlot.engines.failure import failure_of
from oddlot.engines.host import Message
from oddlot.engines.node_ids import NodeIds
from oddlot.engines.ray import internals
from oddlot.engines.ray.actor import CONTROL, Beat, Failure, Hub, Started, host
from oddlot.engines.ray.entrance import Entrance
from oddlot.engines.ray.handles import ActorHandle, News
from oddlot.engines.ray.node_calls import NodeCalls, NodeNews
from oddlot.engines.ray.node_functions import end_of, send_signal
from oddlot.engines.ray.node_watch import REST_SECONDS, Found, NodeWatch
from oddlot.engines.ray.placement import StartedActors
from oddlot.engines.ray.worker_logs import WorkerLogs
from oddlot.engines.respawn import EVALUATOR_INDEX, RespawnPolicy

BEAT_SECONDS = 1.0
"""Interval of heartbeats, in seconds."""
ASK_AFTER = 1 / 3
"""Part of `lost_after_seconds` after which the node of a silent worker is asked for an answer."""

NODES_BEFORE_GIVING_UP = 3
"""Nodes that cannot run workers after which a run ends if no worker was ready before."""
NODE_FAULTS = {"version_mismatch", "module_missing"}
"""Errors of a worker that its node is the reason of."""
FULL = ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError


class Actors:
    """Requests actors, hears their signs of life, and handles their ends.

    `setup` is a reference to the pickled `WorkerSetup`. Answers wait in a queue until `hear` handles them.
    """

    def __init__(
        self,
        started: StartedActors,
        ids: NodeIds,
        setup: Any,
        logs: WorkerLogs,
        clock: Callable[[], float],
    ) -> None:
        self.started, self.fleet, self.ids, self.setup = started, started.fleet, ids, setup
        self.logs, self.clock = logs, clock
        self.policy = RespawnPolicy(len(self.fleet.names), self.fleet.respawn)
        self.evaluations = Evaluations()
        self.evaluator_ready: Callable[[], None] = lambda: None
        """Called when the evaluator is ready."""
        self.was_ready = False
        """Whether a worker was ready in this run."""
        self.running: dict[NodeId, ActorHandle] = {}
        self.messages: deque[Message] = deque()
        """For the host."""
        self.news: SimpleQueue[News | NodeNews] = SimpleQueue()
        self.nodes = NodeWatch(started.hub_node, self.fleet, clock, NodeCalls(self.news))
        self.entrance = Entrance(self.fleet, clock())
        self._host, self._hub = host(), Hub.here()
        self._looked = clock()

    def spawn(self, index: int) -> ActorHandle:
        """Request a worker, or the evaluator. It is heard from once the cluster has room for it."""
        node = self.ids.next(index)
        avoid = self.nodes.avoided
        actor = self.started.take(index, node, avoid)
        worker = ActorHandle(node, index, self.clock(), actor=actor, avoids=bool(avoid))
        self.running[node] = worker
        where = worker.actor.where.options(concurrency_group=CONTROL)
        self.call(worker, partial(self._located, worker), where)
        ready = partial(self._ready, worker)
        self.call(worker, ready, worker.actor.begin, self._hub, index == 0, self.setup)
        self._beat(worker)
        return worker

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
        self.nodes.call(worker.started.ray_node, lambda _: None, send_signal, worker.started.pid, int(number))

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
        if not worker.has_ended:
            self.signal(worker, signal.SIGKILL)  # a frozen process hears nothing of Ray
        busy = bool(self.evaluations.requested if worker.is_evaluator else worker.tasks)
        death = worker.death(bool(worker.tasks), busy)
        if worker.ready and not worker.is_evaluator and not self.entrance.lost(worker.node):
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

    def hear(self, news: News | NodeNews) -> None:
        """Handle an answer."""
        if isinstance(news, NodeNews):
            news.then(news.answer)
            return
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
        if worker.has_ended:
            return
        if isinstance(error, ray.exceptions.RuntimeEnvSetupError):
            raise JobError(
                f"the runtime environment cannot be set up: {error}", "runtime_env_failed", reason=str(error)
            )
        if internals.cannot_start(error):
            why = internals.exception_in(error)
            told = f"{worker.node} did not start ({why}): install the same packages on all nodes"
            self.logs.write(worker.node, str(error).encode())
            self._leave_out(worker, JobError(told, "worker_failed", node=worker.node, reason=str(error)))
            return
        if isinstance(getattr(error, "cause", None), FULL):
            told = f"the object store and the disk of the node of {worker.node} are full"
            self._leave_out(worker, JobError(told, "node_full", node=worker.node, reason=str(error)))
            return
        if isinstance(error, ray.exceptions.RayTaskError):
            told = f"{worker.node} failed\n{error}"
            raise JobError(told, "worker_failed", node=worker.node, reason=str(error))
        if isinstance(error, ray.exceptions.OutOfMemoryError):
            self.nodes.rest(worker)
            worker.outside = True
            told = (
                f"Ray killed {worker.node}, because its node was running out of memory. The node gets no workers for "
                f"{REST_SECONDS:g} s. If other jobs are not the reason, use fewer workers on a node (a larger num_cpus)"
            )
            warn(told, "worker_out_of_memory", node=worker.node)
        elif self._lost_node(worker, error):
            self._lose_node(worker)
            return
        self._judge(worker)

    def _judge(self, worker: ActorHandle) -> None:
        """Find out from its output why a worker's process has ended. It is lost after that."""
        started = worker.started
        if started is None or worker.killed:
            self.lose(worker)
        elif started.host == self._host:
            self._judged(worker, end_of(started.files))
        else:
            worker.judged_by = self.clock() + self.fleet.lost_after_seconds
            self.nodes.call(started.ray_node, partial(self._judged, worker), end_of, list(started.files))

    def _judged(self, worker: ActorHandle, output: object) -> None:
        worker.exit_code = self.logs.keep(worker.node, output)
        if isinstance(output, BaseException) and self.is_running(worker):
            self._lose_node(worker)
        self.lose(worker)

    def _leave_out(self, worker: ActorHandle, error: JobError) -> None:
        """Use the node of a worker no longer, because of this error."""
        worker.judged_by = self.clock() + self.fleet.lost_after_seconds
        self.nodes.find(worker.actor, partial(self._left_out, worker, error))

    def _left_out(self, worker: ActorHandle, error: JobError, found: Found | BaseException) -> None:
        if not self.is_running(worker):
            return
        if isinstance(found, BaseException):  # the head does not answer
            self._lose_node(worker)
            return
        there = self.nodes.left_out | {found.node}
        may_start = found.others - there and len(there) < NODES_BEFORE_GIVING_UP
        if worker.is_evaluator or not found.node or not (self.was_ready or may_start):
            raise error
        self.nodes.left_out = there
        told = f"the node {found.address} is left out of this run: {error}"
        warn(told, "node_left_out", node=worker.node, address=found.address, reason=error.code)
        worker.outside = True
        self.lose(worker)

    def _lose_node(self, worker: ActorHandle) -> None:
        """Count a worker as lost with its node."""
        worker.outside = True
        self.nodes.suspect(worker)
        self.lose(worker)

    def _lost_node(self, worker: ActorHandle, error: BaseException) -> bool:
        """Return whether a worker was lost because its node was."""
        ended = internals.ended_part(error)
        if ended == "unknown":
            return worker.started is None or not self.nodes.is_there(worker, self.running.values())
        return ended == "node"

    def fail(self, worker: ActorHandle, failure: Failure) -> None:
        """Raise the error of a worker, and keep the end of its output."""
        self.logs.write(worker.node, failure.log)
        raise failure_of(worker.node, failure.error)

    def check(self) -> None:
        """Replace workers that are due, end those that are silent, and say what the run waits for."""
        now = self.clock()
        pause, patience = now - self._looked, self.fleet.lost_after_seconds
        self._looked = now
        for worker in list(self.running.values()):
            if now > worker.judged_by:
                self._lose_node(worker)
            if worker.heard is None or worker.has_ended:
                continue
            # While the hub is away itself, it does not listen.
            worker.silence = 0.0 if worker.heard >= now - pause else worker.silence + min(pause, BEAT_SECONDS)
            if worker.silence > patience:
                self._silent(worker)
            elif worker.silence > patience * ASK_AFTER and worker.started is not None:
                self.nodes.ask(worker.started.ray_node)
        if self.nodes.forgive():
            self._request_again()
        for index in self.policy.due(now):
            self.spawn(index)
        self._warn_drained()
        self.entrance.tell(
            now, sum(worker.ready for worker in self.running.values() if not worker.is_evaluator)
        )

    def _silent(self, worker: ActorHandle) -> None:
        """Replace a worker that has given no sign of life for long. If its node has, its samples may be the reason."""
        seconds = self.fleet.lost_after_seconds
        if worker.started is None or self.nodes.is_there(worker, self.running.values()):
            worker.silent_seconds = seconds
            told = f"{worker.node} has given no sign of life for {seconds:g} s and is replaced"
            warn(told, "worker_silent", node=worker.node, seconds=seconds)
        else:
            address = worker.started.address
            told = (
                f"the node {address} of {worker.node} has given no sign of life for {seconds:g} s. It gets no workers "
                f"until it answers, and {worker.node} is replaced"
            )
            warn(told, "node_silent", node=worker.node, address=address, seconds=seconds)
            self._lose_node(worker)
            return
        self.lose(worker)

    def _request_again(self) -> None:
        """Request actors again that wait for a node, because they must not be on one that may be used now."""
        for worker in list(self.running.values()):
            if worker.avoids and not worker.ready:
                worker.taken_away = True
                self.lose(worker)

    def close(self) -> None:
        """Kill all actors."""
        self.nodes.close()
        for worker in self.running.values():
            with suppress(ray.exceptions.RayError, ValueError):
                ray.kill(worker.actor)

    # --- what workers tell ---------------------------------------------------------------------

    def _beat(self, worker: ActorHandle) -> None:
        beat = worker.actor.beat.options(concurrency_group=CONTROL)
        self.call(worker, partial(self._beaten, worker), beat, BEAT_SECONDS)

    def _beaten(self, worker: ActorHandle, beat: Beat) -> None:
        self._beat(worker)
        if beat == "node_lost":
            self._lose_node(worker)
        elif beat == "leaving" and not worker.is_evaluator:
            worker.leaving = True
            if worker.ready:
                self.messages.append(Leaving(worker.node))
            self.dismiss(worker)

    def _located(self, worker: ActorHandle, started: Started) -> None:
        worker.started = started

    def _ready(self, worker: ActorHandle, started: Started | Failure) -> None:
        if isinstance(started, Failure):
            if started.error.get("code") in NODE_FAULTS:
                self.logs.write(worker.node, started.log)
                self._leave_out(worker, failure_of(worker.node, started.error))
            else:
                self.fail(worker, started)
            return
        worker.ready, worker.started = True, started
        if worker.is_evaluator:
            self.evaluator_ready()
            return
        self.was_ready = True
        self.messages.extend(self.entrance.enter(Joined(worker.node, self.fleet.dollars_per_hour)))

    def _warn_drained(self) -> None:
        """Give notice to the workers of drained nodes, once."""
        for worker in self.running.values():
            if self.nodes.must_leave(worker) and not worker.noticed and not worker.is_evaluator:
                worker.noticed = True
                self.control(worker.node, "leave")
