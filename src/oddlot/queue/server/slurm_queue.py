"""A queue in front of Slurm: it sets the priorities of pending jobs, and leaves placement to Slurm."""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from time import time
from typing import Any

from oddlot.core.support.errors import UsageError
from oddlot.queue.core.events import JobStarted, JobSubmitted
from oddlot.queue.core.jobs import JobRequest, Part, QueuedJob
from oddlot.queue.core.machines import Machine
from oddlot.queue.core.policy import Policy, PolicyFailed, Usage, priority_of
from oddlot.queue.core.policy_registry import POLICIES, policy_of
from oddlot.queue.core.scheduler import Scheduler
from oddlot.queue.predict.predictor import Predictor
from oddlot.queue.server.database import DiskFull
from oddlot.queue.server.expected_ranges import ExpectedRange, expected_ranges
from oddlot.queue.server.job_store import JobStore
from oddlot.queue.server.prediction import Range, predicted
from oddlot.queue.server.slurm_commands import (
    SlurmError,
    SlurmJob,
    new_priorities,
    read_jobs,
    read_nodes,
    set_priority,
)

EVERY_SECONDS = 5.0
MAX_ORDERED = 2_000
"""Number of pending jobs that are ordered. The oldest come first."""
HELD_BACK = 2
log = logging.getLogger("oddlot.queue")


@dataclass(frozen=True)
class PredictedJob:
    """A pending or running job of Slurm, with its predicted duration in seconds."""

    slurm: SlurmJob
    prediction: Range

    @property
    def id(self) -> int:
        """Number of the job."""
        return self.slurm.id

    @property
    def predicted(self) -> float:
        """Predicted seconds."""
        return self.prediction[0]

    @property
    def low(self) -> float:
        """10 % quantile, in seconds."""
        return self.prediction[1]

    @property
    def high(self) -> float:
        """90 % quantile, in seconds."""
        return self.prediction[2]


def works_with_slurm(policy: Policy) -> bool:
    """Return whether a policy needs only the request and the prediction. Slurm starts and stops jobs.

    Usage and attained service of jobs are unknown here, so a policy that changes with them would be FIFO.
    """
    return not policy.changes and not policy.preempts


def check_policy(policy: Policy, name: str) -> None:
    """Raise UsageError for a policy that does not work with Slurm."""
    if not works_with_slurm(policy):
        working = [one for one in POLICIES if works_with_slurm(policy_of(one))]
        message = f"the policy {name} changes or preempts, and Slurm's queue cannot: use {', '.join(working)}"
        raise UsageError(message, "policy_without_slurm", policy=name, working=tuple(working))


LEARNT = ("COMPLETED", "FAILED")
"""States of jobs that have ended by themselves. Others, such as CANCELLED and TIMEOUT, would have run longer."""


class SlurmQueue:
    """Orders the pending jobs of Slurm by a policy, and learns from jobs that have ended by themselves.

    Held jobs stay held. A job that Slurm forgets before its end is seen is not learned: keep `MinJobAge` in
    slurm.conf above a minute.
    """

    def __init__(
        self,
        store: JobStore,
        policy: Policy,
        predictor: Predictor,
        longest_wait: float | None,
        clock: Callable[[], float] = time,
    ) -> None:
        self.store, self.policy, self.predictor = store, policy, predictor
        self.longest_wait, self.clock = longest_wait, clock
        self.lock = threading.RLock()
        self.known = {int(request.id) for request, _, _ in store.history()}
        """Jobs in the history, with negative numbers."""
        self.jobs: list[SlurmJob] = []
        self.open: list[PredictedJob] = []

    def run(self, stopped: threading.Event) -> None:
        """Set priorities until `stopped` is set. Errors of Slurm and a full disk are logged, and tried again."""
        while True:
            try:
                self.tick()
            except (DiskFull, UsageError) as error:
                log.warning("%s", error)
            if stopped.wait(EVERY_SECONDS):
                return

    def tick(self) -> None:
        """Read the jobs, learn from ended ones, and set the priorities of pending ones."""
        jobs = read_jobs()
        with self.lock:
            self._learn(jobs)
            self.jobs = jobs
            self.open = [
                PredictedJob(job, predicted(self.predictor, job.request, self.clock(), None))
                for job in jobs
                if job.is_pending or job.is_running
            ]
            pending = sorted(
                (job for job in self.open if job.slurm.is_pending),
                key=lambda job: (job.slurm.submitted, job.id),
            )[:MAX_ORDERED]  # squeue's own order is the present one
            keys = {job.id: self._key(job) for job in pending}
            pending = [job for job in pending if keys[job.id][0] < HELD_BACK]
            pending.sort(key=lambda job: keys[job.id])
        for index, priority in new_priorities([job.slurm.priority for job in pending]).items():
            self._set(pending[index].slurm, priority)

    def _set(self, job: SlurmJob, priority: int) -> None:
        try:
            set_priority(job.id, priority)
        except SlurmError as error:  # it may have started since
            log.warning("job %d keeps its priority: %s", job.id, error)

    def _learn(self, jobs: Iterable[SlurmJob]) -> None:
        for job in jobs:
            if job.state in LEARNT and -job.id not in self.known and job.started and job.ended:
                duration = max(1.0, job.ended - job.started)
                self.store.remember(_renumbered(job), duration, job.ended)
                self.predictor.observe(job.request, duration, job.ended)
                self.known.add(-job.id)

    def _key(self, job: PredictedJob) -> tuple[Any, ...]:
        """Return the place of a job in the order. It begins with HELD_BACK for a job that the policy holds back."""
        request, now = job.slurm.request, self.clock()
        if self.longest_wait is not None and now - request.submitted > self.longest_wait:
            return 0, request.submitted, request.submitted, job.id
        queued = QueuedJob(request, job.predicted, job.id)
        try:
            priority = priority_of(self.policy, queued, now, Usage())
        except PolicyFailed as error:
            log.error("job %d keeps its priority: %s", job.id, error)
            priority = None
        if priority is None:
            return HELD_BACK, request.submitted, request.submitted, job.id
        return 1, priority, request.submitted, job.id

    # --- what is shown -------------------------------------------------------------------------

    def view(self, user: str, ended: int) -> dict[str, Any]:
        """Return the queue as a JSON object, as that of a queue of processes."""
        nodes = read_nodes()
        with self.lock:
            now, jobs, predictions = self.clock(), self.jobs, {job.id: job for job in self.open}
            expected = self._expected(nodes, now)
        old = sorted(
            (job for job in jobs if not job.is_pending and not job.is_running and not job.is_held),
            key=lambda job: -(job.ended or 0),
        )
        shown = [job for job in jobs if job.is_pending or job.is_running or job.is_held]
        order = {job.id: place for place, job in enumerate(sorted(self.open, key=self._key))}
        shown.sort(key=lambda job: (not job.is_running, order.get(job.id, len(order))))
        return {
            "now": now,
            "user": user,
            "policy": self.policy.name,
            "machines": self._machines(nodes),
            "jobs": [_brief(job, now, predictions.get(job.id), expected.get(job.id)) for job in shown],
            "ended": [_brief(job, now, None, None) for job in old[:ended]],
        }

    def _machines(self, nodes: Iterable[Machine]) -> list[dict[str, Any]]:
        """Return the nodes, and what is free on them. Jobs on several nodes count on the first one."""
        running = [job for job in self.jobs if job.is_running]
        used = {node.id: [job for job in running if job.nodes == node.id] for node in nodes}
        return [
            {
                "id": node.id,
                "gpus": node.gpus,
                "cpus": node.cpus,
                "free_gpus": max(0, node.gpus - sum(job.gpus for job in used[node.id])),
                "free_cpus": max(0, node.cpus - sum(job.cpus for job in used[node.id])),
            }
            for node in nodes
        ]

    def _expected(self, nodes: Sequence[Machine], now: float) -> dict[int, ExpectedRange]:
        """Return expected times, from a simulation of a scheduler with these nodes. Slurm decides the real ones."""
        scheduler = Scheduler(self.policy, nodes, longest_wait=self.longest_wait)
        for job in self.open:
            scheduler.note(JobSubmitted(now, job.slurm.request, job.predicted))
        for job in self.open:
            if job.slurm.is_running and job.slurm.nodes in {node.id for node in nodes}:
                placement = (Part(job.slurm.nodes, job.slurm.gpus, job.slurm.cpus),)
                scheduler.note(JobStarted(job.slurm.started or now, str(job.id), 1, placement))
        return expected_ranges(scheduler, self.open, now)


def _renumbered(job: SlurmJob) -> JobRequest:
    """Return the request of a job with a negative number. Numbers of the queue's own jobs are positive."""
    return replace(job.request, id=str(-job.id))


def _brief(
    job: SlurmJob, now: float, prediction: PredictedJob | None, expected: ExpectedRange | None
) -> dict[str, Any]:
    """Return a job for a list, with the keys of a job of processes."""
    started = None if job.is_pending or job.is_held else job.started
    ended = None if job.is_pending or job.is_running or job.is_held else job.ended
    state = {"COMPLETED": "finished"}.get(job.state, job.state.lower())
    return {
        "id": job.id,
        "user": job.user,
        "name": f"{job.name}[{job.array_tasks}]" if job.array_tasks else job.name,
        "virtual_cluster": job.account,
        "state": "held" if job.is_held and job.state == "PENDING" else state,
        "gpus": job.gpus,
        "cpus": job.cpus,
        "submitted": job.submitted,
        "started": started,
        "ended": ended or (None if prediction else job.submitted),
        "waiting_seconds": max(0.0, (started or ended or now) - job.submitted),
        "ran_seconds": max(0.0, (ended or now) - started) if started else 0.0,
        "predicted_seconds": prediction.predicted if prediction else None,
        "predicted_range": [prediction.low, prediction.high] if prediction else None,
        "expected_start": list(expected.start) if expected else None,
        "expected_end": list(expected.end) if expected else None,
        "attempt": 1 if started else 0,
        "exit": None,
        "reason": "",
        "priority": job.priority,
    }
