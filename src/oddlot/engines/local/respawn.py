"""When a worker that has ended is replaced, and when the run fails: a policy without processes, sockets or clocks."""

import signal
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from oddlot.core.errors import JobError
from oddlot.core.tasks import NodeId

CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}
"""Signals of a fault in the process's own code. Others come from outside, as when memory runs out."""
RESPAWNS_A_MINUTE = 3
DEATHS_BEFORE_GIVING_UP = 3
EVALUATOR_INDEX = -1


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker's process ended."""

    node: NodeId
    index: int
    """The worker's place among all; -1: the evaluator."""
    exit_code: int | None = None
    """Negative: the signal that ended it. None: the hub has ended it."""
    had_tasks: bool = False
    idle: bool = False
    """It was ready and had nothing to do."""
    expected: bool = False
    """It was leaving, or was taken away."""
    productive: bool = False
    """It had returned an update."""
    killed: bool = False
    """It was killed by fault injection."""
    invalid: bool = False
    """The hub ended it for an invalid message."""

    @property
    def cause(self) -> str | None:
        """How it ended by itself while it held tasks, whose samples may be the reason; else None."""
        code = self.exit_code
        if code is None or not self.had_tasks or self.expected:
            return None
        if code >= 0:
            return f"exit code {code}"
        return signal.Signals(-code).name if -code in CRASHES else None

    @property
    def is_failed_start(self) -> bool:
        """Whether it ended before it was ready, or at work through no fault of its samples."""
        return not self.idle and not self.expected and self.cause is None


class RespawnPolicy:
    """Decides when each of `workers` workers starts again, and counts failed starts, the evaluator's too.

    A worker that had returned an update is replaced at once; one that had not, at most three times a minute.
    """

    def __init__(self, workers: int, replaces: bool) -> None:
        self.replaces = replaces
        self.deaths: list[deque[float]] = [deque(maxlen=RESPAWNS_A_MINUTE) for _ in range(workers)]
        self.failed_starts = [0] * (workers + 1)
        """In a row, of every worker and, last, of the evaluator."""
        self.barred, self.waits = [False] * workers, [False] * workers
        """Workers that must stay away, and those of them that are due."""
        self.timers: list[tuple[float, int]] = []
        """When to start which worker."""

    @property
    def next_at(self) -> float:
        """When the next worker is due; infinity for never."""
        return self.timers[0][0] if self.timers else inf

    def update_came(self) -> None:
        """Forget failed starts: an update came in."""
        self.failed_starts[:-1] = [0] * len(self.deaths)

    def metrics_came(self) -> None:
        """Forget the evaluator's failed starts: metrics came in."""
        self.failed_starts[-1] = 0

    def died(self, death: Death, now: float) -> None:
        """Count a death, and schedule the worker's replacement. JobError: too many failed starts in a row.

        A death that the samples may have caused is counted by the ledger, against these samples.
        """
        if death.is_failed_start:
            self.failed_starts[death.index] += 1
            if self.failed_starts[death.index] >= DEATHS_BEFORE_GIVING_UP:
                raise _keep_dying(death)
        if not self.replaces or death.index == EVALUATOR_INDEX:
            return
        if death.expected or death.productive:
            self.retry(death.index, now)
            return
        deaths = self.deaths[death.index]
        again = max(now, deaths[0] + 60.0) if len(deaths) == RESPAWNS_A_MINUTE else now
        deaths.append(again)
        self.retry(death.index, again)

    def retry(self, index: int, at: float) -> None:
        """Start the worker at this time."""
        heappush(self.timers, (at, index))

    def bar(self, index: int, barred: bool, now: float) -> None:
        """Set whether the worker stays away once it has ended."""
        self.barred[index] = barred
        if not barred and self.waits[index]:
            self.waits[index] = False
            self.retry(index, now)

    def due(self, now: float) -> list[int]:
        """Return the workers (-1: the evaluator) to start now. Barred ones follow when they are barred no more."""
        found = []
        while self.timers and self.timers[0][0] <= now:
            index = heappop(self.timers)[1]
            barred = index != EVALUATOR_INDEX and self.barred[index]
            if barred:
                self.waits[index] = True
            found += [] if barred else [index]
        return found


def _keep_dying(last: Death) -> JobError:
    """Return the error of a worker's last failed start."""
    why = (
        "was killed by a fault on purpose: have it strike less often"
        if last.killed
        else f"{_how(last)}: look for what ends them (too little memory?) in the lines above"
    )
    return JobError(
        f"{DEATHS_BEFORE_GIVING_UP} processes in a row died before they had done anything; the last one, {last.node}, "
        f"{why}",
        "workers_keep_dying",
        node=last.node,
        on_purpose=last.killed,
        exit_code=last.exit_code,
    )


def _how(death: Death) -> str:
    """Say how its process ended."""
    if death.exit_code is None:
        return "sent an invalid message" if death.invalid else "closed its socket"
    if death.exit_code < 0:
        return f"was ended by {signal.Signals(-death.exit_code).name}"
    return f"exited with code {death.exit_code}"
