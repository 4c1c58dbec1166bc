"""The respawn policy and the data of process exits. The policy decides when workers are replaced and when the run
fails."""

import logging
import signal
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from oddlot.core.support.errors import JobError
from oddlot.core.support.user_warnings import warn
from oddlot.core.tasks import NodeId

CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}
"""Signals of a crash in the process's own code. Other signals come from outside, e.g. when memory runs out."""
RESPAWNS_A_MINUTE = 3
DEATHS_BEFORE_GIVING_UP = 3
KILLS_BEFORE_WARNING = 10
EVALUATOR_INDEX = -1
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a worker's process."""

    node: NodeId
    index: int
    """Number of the worker. -1: the evaluator."""
    exit_code: int | None = None
    """Exit code, or the negative number of the signal that killed it. None if the hub ended it."""
    had_tasks: bool = False
    idle: bool = False
    """Whether it was ready and idle."""
    expected: bool = False
    """Whether it was leaving or preempted."""
    productive: bool = False
    """Whether it had returned an update."""
    killed: bool = False
    """Whether it was killed by fault injection."""
    outside: bool = False
    """Whether the cause is external: its node was lost, or ran out of memory."""
    invalid: bool = False
    """Whether the hub ended it because of an invalid message."""
    silent_seconds: float | None = None
    """Seconds without a sign of life until the hub ended it. None if it was not silent."""
    output: str = ""
    """End of its output, if the output was written to a file."""

    @property
    def cause(self) -> str | None:
        """Return how it ended or was silent, as text, or None if the samples of its tasks cannot be the cause."""
        code = self.exit_code
        if not self.had_tasks or self.expected or self.outside:
            return None
        if self.silent_seconds is not None:
            return f"silence for {silence(self.silent_seconds)}"
        if code is None:
            return None
        if code >= 0:
            return f"exit code {code}"
        return signal.Signals(-code).name if -code in CRASHES else None

    @property
    def is_failed_start(self) -> bool:
        """Whether it ended before it was ready, or during a task for a reason other than the task's samples."""
        return not (self.idle or self.expected or self.killed or self.outside) and self.cause is None


class RespawnPolicy:
    """The rules for when each of `workers` workers is replaced, with the failed starts of workers and the evaluator.

    A worker that had returned an update, or was ended on purpose, is replaced immediately. Other workers are replaced
    at most three times a minute.
    """

    def __init__(self, workers: int, replaces: bool) -> None:
        self.replaces = replaces
        self.deaths: list[deque[float]] = [deque(maxlen=RESPAWNS_A_MINUTE) for _ in range(workers)]
        self.failed_starts = [0] * (workers + 1)
        """Consecutive failed starts of each worker and, in the last item, of the evaluator."""
        self.killed = 0
        """Number of workers that injected faults have killed since the last update."""
        self.barred, self.unwanted = [False] * workers, [False] * workers
        """Whether each worker must not start: because of an injected fault, or because its machine is not ordered."""
        self.waits = [False] * workers
        """Whether the start of a barred or unwanted worker is due."""
        self.timers: list[tuple[float, int]] = []
        """Heap of start times and indices of workers."""

    @property
    def next_at(self) -> float:
        """Return the time of the next start, or infinity if no start is planned."""
        return self.timers[0][0] if self.timers else inf

    def update_came(self) -> None:
        """Reset the failed starts of workers, because an update arrived."""
        self.failed_starts[:-1] = [0] * len(self.deaths)
        self.killed = 0

    def metrics_came(self) -> None:
        """Reset the failed starts of the evaluator, because metrics arrived."""
        self.failed_starts[-1] = 0

    def died(self, death: Death, now: float) -> None:
        """Count a death, and schedule the worker's replacement. Raise JobError after too many failed starts.

        The ledger counts deaths that samples may have caused, against these samples.
        """
        if death.is_failed_start:
            self.failed_starts[death.index] += 1
            if self.failed_starts[death.index] >= DEATHS_BEFORE_GIVING_UP:
                raise _keep_dying(death)
        self.killed += death.killed
        if self.killed == KILLS_BEFORE_WARNING and death.killed:
            message = (
                f"{self.killed} workers in a row were killed by injected faults before any returned an update: inject "
                "them less often"
            )
            warn(message, "faults_leave_no_time", workers=self.killed)
        if not self.replaces or death.index == EVALUATOR_INDEX:
            return
        if death.expected or death.productive or death.killed:
            self.retry(death.index, now)
            return
        deaths = self.deaths[death.index]
        again = max(now, deaths[0] + 60.0) if len(deaths) == RESPAWNS_A_MINUTE else now
        deaths.append(again)
        self.retry(death.index, again)

    def retry(self, index: int, at: float) -> None:
        """Schedule a start of the worker at the time `at`."""
        heappush(self.timers, (at, index))

    def bar(self, index: int, barred: bool, now: float) -> None:
        """Set whether the worker is barred: it is not replaced after it has ended."""
        self.barred[index] = barred
        self._release(index, now)

    def want(self, index: int, wanted: bool, now: float) -> None:
        """Set whether a machine is ordered for the worker. Otherwise, it is not replaced after it has ended."""
        self.unwanted[index] = not wanted
        self._release(index, now)

    def reserve(self, index: int) -> None:
        """Start the worker only once it is wanted."""
        self.unwanted[index] = self.waits[index] = True

    def due(self, now: float) -> list[int]:
        """Return the workers (-1: the evaluator) to start now. Barred and unwanted workers wait."""
        found = []
        while self.timers and self.timers[0][0] <= now:
            index = heappop(self.timers)[1]
            if self._must_wait(index):
                self.waits[index] = True
            else:
                found.append(index)
        return found

    def _must_wait(self, index: int) -> bool:
        return index != EVALUATOR_INDEX and (self.barred[index] or self.unwanted[index])

    def _release(self, index: int, now: float) -> None:
        """Schedule the start of a worker that waited, unless it still has to wait."""
        if self.waits[index] and not self._must_wait(index):
            self.waits[index] = False
            self.retry(index, now)


def _keep_dying(last: Death) -> JobError:
    """Return the error of a worker's last failed start."""
    why = (
        _how(last)
        if last.silent_seconds is not None
        else f"{_how(last)}. It may be out of memory. Its output:\n{last.output}"
        if last.output
        else f"{_how(last)}. See its output above; it may be out of memory"
    )
    times = DEATHS_BEFORE_GIVING_UP
    message = f"{times} workers in a row exited before finishing a task. The last one, {last.node}, {why}"
    if last.index == EVALUATOR_INDEX:
        message = (
            f"the evaluator exited {times} times in a row before it returned metrics. The last time, it {why}"
        )
    fields = {"node": last.node, "exit_code": last.exit_code}
    return JobError(message, "workers_keep_dying", **fields)


def log_exit(process: str, code: int) -> None:
    """Log the end of a process that failed or was killed."""
    if code > 0:
        logger.warning("%s ended with exit code %d", process, code)
    if code < 0:
        logger.info("%s was killed by signal %d", process, -code)


def silence(seconds: float) -> str:
    """Return the time that a worker was silent, with advice, as text."""
    return f"{seconds:g} s (increase lost_after_seconds if your code holds Python's GIL for longer)"


def _how(death: Death) -> str:
    """Return how a process ended, for messages."""
    if death.silent_seconds is not None:
        return f"gave no sign of life for {silence(death.silent_seconds)}"
    if death.exit_code is None:
        return "sent an invalid message" if death.invalid else "ended without an exit code"
    if death.exit_code < 0:
        return f"was killed by {signal.Signals(-death.exit_code).name}"
    return f"exited with code {death.exit_code}"
