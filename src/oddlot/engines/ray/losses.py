"""Detection of lost workers, and the reason of each loss: the process, its samples or its node."""

from collections.abc import Callable, Mapping
from functools import partial

import ray

from oddlot.core.support.errors import JobError
from oddlot.core.support.user_warnings import warn
from oddlot.core.tasks import NodeId
from oddlot.engines.processes.user_code_error import failure_of
from oddlot.engines.ray import private_api
from oddlot.engines.ray.handles import ActorHandle
from oddlot.engines.ray.node_functions import end_of
from oddlot.engines.ray.node_watch import REST_SECONDS, ActorNode, NodeWatch
from oddlot.engines.ray.worker_actor import Failure, host
from oddlot.engines.ray.worker_logs import WorkerLogs

ASK_AFTER = 1 / 3
"""Part of `lost_after_seconds` until the node of a silent worker is called."""
NODES_BEFORE_GIVING_UP = 3
"""A run without a ready worker ends after this number of nodes that cannot run workers."""
NODE_FAULTS = {"version_mismatch", "module_missing", "worker_failed", "node_full"}
"""Errors of a worker that are due to its node, even before any worker was ready."""
FULL = ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError


class Losses:
    """Finds the reason of errors of Ray, and of workers without a sign of life for `lost_after_seconds`.

    `running` are the workers that still count. `lose` counts a worker as lost if it is in `running`.
    """

    def __init__(
        self,
        nodes: NodeWatch,
        logs: WorkerLogs,
        lost_after_seconds: float,
        running: Mapping[NodeId, ActorHandle],
        lose: Callable[[ActorHandle], None],
    ) -> None:
        self.nodes, self.logs, self.lost_after_seconds, self.running, self.lose = (
            nodes,
            logs,
            lost_after_seconds,
            running,
            lose,
        )
        self.was_ready = False
        """Whether a worker was ready in this run."""
        self._host = host()

    def died(self, worker: ActorHandle, error: BaseException) -> None:
        """Handle an error of Ray instead of a result: the worker is lost."""
        if worker.has_ended:
            return
        if reason := _fault_of_node(worker, error):
            self.logs.write(worker.node, str(error).encode())
            self._leave_out(worker, reason)
        elif isinstance(error, ray.exceptions.RayTaskError):
            message = f"{worker.node} failed\n{error}"
            raise JobError(message, "worker_failed", node=worker.node, reason=str(error))
        elif isinstance(error, ray.exceptions.OutOfMemoryError):
            self._out_of_memory(worker)
        elif self._lost_node(worker, error):
            self.lose_node(worker)
        else:
            self._judge(worker)

    def failed(self, worker: ActorHandle, failure: Failure) -> None:
        """Keep the end of a failed worker's output. Raise its error, or exclude its node if that is the reason."""
        self.logs.write(worker.node, failure.log)
        error = failure_of(worker.node, failure.error)
        if error.code not in NODE_FAULTS:
            raise error
        self._leave_out(worker, error)

    def check(self, worker: ActorHandle, pause: float, most: float) -> None:
        """Count a worker as lost if it is silent, or if it has ended and its node does not return the output.

        `pause` are the seconds since the last check. At most `most` of them count, because the hub may have been
        suspended.
        """
        now = self.nodes.clock()
        if now > worker.judged_by:
            self.lose_node(worker)
        if worker.heard is None or worker.has_ended:
            return
        # The hub receives nothing while it is suspended itself.
        worker.silence = 0.0 if worker.heard >= now - pause else worker.silence + min(pause, most)
        if worker.silence > self.lost_after_seconds:
            self._silent(worker)
        elif worker.silence > self.lost_after_seconds * ASK_AFTER and worker.started is not None:
            self.nodes.ask(worker.started.ray_node)

    def lose_node(self, worker: ActorHandle) -> None:
        """Count a worker as lost with its node."""
        worker.outside = True
        self.nodes.suspect(worker)
        self.lose(worker)

    def _is_running(self, worker: ActorHandle) -> bool:
        return self.running.get(worker.node) is worker

    def _silent(self, worker: ActorHandle) -> None:
        """Replace a silent worker. If its node responds, its samples may be the reason. Otherwise avoid the node."""
        node, seconds, started = worker.node, self.lost_after_seconds, worker.started
        if started is None or self.nodes.is_there(worker, self.running.values()):
            worker.silent_seconds = seconds
            message = f"{node} has given no sign of life for {seconds:g} s and is replaced"
            warn(message, "worker_silent", node=node, seconds=seconds)
            self.lose(worker)
            return
        message = (
            f"the node {started.address} of {node} has given no sign of life for {seconds:g} s. It gets no workers "
            f"until it answers, and {node} is replaced"
        )
        warn(message, "node_silent", node=node, address=started.address, seconds=seconds)
        self.lose_node(worker)

    def _out_of_memory(self, worker: ActorHandle) -> None:
        worker.outside = True
        self.nodes.rest(worker)
        message = (
            f"Ray killed {worker.node}, because its node was running out of memory. The node gets no workers for "
            f"{REST_SECONDS:g} s. If other jobs are not the reason, use fewer workers on a node (a larger num_cpus)"
        )
        warn(message, "worker_out_of_memory", node=worker.node)
        self._judge(worker)

    def _lost_node(self, worker: ActorHandle, error: BaseException) -> bool:
        """Return whether a worker was lost with its node."""
        ended = private_api.ended_part(error)
        if ended == "unknown":
            return worker.started is None or not self.nodes.is_there(worker, self.running.values())
        return ended == "node"

    def _judge(self, worker: ActorHandle) -> None:
        """Read the output of a worker's process that has ended, and then count the worker as lost."""
        started = worker.started
        if started is None or worker.killed:
            self.lose(worker)
        elif started.host == self._host:
            self._judged(worker, end_of(started.files))
        else:
            self._wait(worker)
            self.nodes.call(started.ray_node, partial(self._judged, worker), end_of, list(started.files))

    def _judged(self, worker: ActorHandle, output: object) -> None:
        worker.exit_code = self.logs.keep(worker.node, output)
        if isinstance(output, BaseException) and self._is_running(worker):
            self.lose_node(worker)
        self.lose(worker)

    def _others_ready(self, worker: ActorHandle) -> bool:
        return any(one.ready for one in self.running.values() if one is not worker and not one.is_evaluator)

    def _wait(self, worker: ActorHandle) -> None:
        """Set how long to wait for the reason of a worker's end: no longer than for a silent worker."""
        now = self.nodes.clock()
        heard = now if worker.heard is None else worker.heard
        worker.judged_by = max(heard + self.lost_after_seconds, now + self.lost_after_seconds * ASK_AFTER)

    def _leave_out(self, worker: ActorHandle, error: JobError) -> None:
        """Exclude the node of a worker from the run because of this error."""
        self._wait(worker)
        self.nodes.find(worker.actor, partial(self._left_out, worker, error))

    def _left_out(self, worker: ActorHandle, error: JobError, found: ActorNode | BaseException) -> None:
        if not self._is_running(worker):
            return
        if isinstance(found, BaseException):  # the head does not respond
            self.lose_node(worker)
            return
        there = self.nodes.left_out | {found.node}
        may_start = found.others - there and len(there) < NODES_BEFORE_GIVING_UP and error.code in NODE_FAULTS
        is_stuck = error.code == "node_full" and not self._others_ready(worker) and not found.others - there
        if worker.is_evaluator or not found.node or is_stuck or not (self.was_ready or may_start):
            raise error
        self.nodes.left_out = there
        message = f"the node {found.address} is left out of this run: {private_api.exception_in(error)}"
        warn(message, "node_left_out", node=worker.node, address=found.address, reason=error.code)
        worker.outside = True
        self.lose(worker)


def _fault_of_node(worker: ActorHandle, error: BaseException) -> JobError | None:
    """Return the error of a node that cannot run workers, or None if Ray's error has another reason."""
    if private_api.cannot_start(error):
        why = private_api.exception_in(error)
        message = f"{worker.node} did not start ({why}): install the same packages on all nodes"
        return JobError(message, "worker_failed", node=worker.node, reason=str(error))
    if isinstance(error, ray.exceptions.RuntimeEnvSetupError):
        message = f"the runtime environment cannot be set up: {error}"
        return JobError(message, "runtime_env_failed", reason=str(error))
    if isinstance(getattr(error, "cause", None), FULL):
        message = f"the object store and the disk of the node of {worker.node} are full"
        return JobError(message, "node_full", node=worker.node, reason=str(error))
    return None
