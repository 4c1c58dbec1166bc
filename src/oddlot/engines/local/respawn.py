"""When a worker that has died is replaced, and when the run gives up: bookkeeping without processes."""

import signal
from collections import deque
from heapq import heappop, heappush
from math import inf

from oddlot.core.errors import JobError
from oddlot.engines.local.worker_handle import Life

CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}
"""signals that a process ends by through a fault of its own code; others come from outside, as for too much memory"""
RESPAWNS_A_MINUTE = 3
DEATHS_BEFORE_GIVING_UP = 3


class Respawns:
    """The deaths of `workers` workers, and of the evaluator, whose index is -1.

    A worker that had brought something is replaced at once; of those that had not, at most three a minute.
    """

    def __init__(self, workers: int, replaces: bool) -> None:
        self.replaces = replaces
        self.deaths: list[deque[float]] = [deque(maxlen=RESPAWNS_A_MINUTE) for _ in range(workers)]
        self.fruitless = [0] * (workers + 1)
        """for every worker and, last, the evaluator: how many lives in a row ended without an answer"""
        self.barred, self.waits = [False] * workers, [False] * workers
        """which workers are not to be replaced for now, and which would be otherwise"""
        self.timers: list[tuple[float, int]] = []
        """when to respawn which worker"""

    @property
    def next_at(self) -> float:
        """When the next worker is due; infinity for never."""
        return self.timers[0][0] if self.timers else inf

    def worked(self) -> None:
        """An update came in."""
        self.fruitless[:-1] = [0] * len(self.deaths)

    def measured(self) -> None:
        """Metrics came in."""
        self.fruitless[-1] = 0

    def died(self, life: Life, now: float, idle: bool) -> None:
        """Count a death, and schedule the replacement of a worker. JobError: too many failed starts in a row.

        A failed start is a process that ends before it is ready, or while it has work (it is not `idle`). One that may
        have died of its samples is counted by the books, against these.
        """
        if not idle and not life.leaving and not life.taken_away and cause_of(life) is None:
            self.fruitless[life.index] += 1
            if self.fruitless[life.index] >= DEATHS_BEFORE_GIVING_UP:
                raise _keep_dying(life)
        if not self.replaces or life.index < 0:
            return
        if life.leaving or life.fruitful or life.taken_away:
            heappush(self.timers, (now, life.index))  # it was asked to go, or is bad luck
            return
        deaths = self.deaths[life.index]
        again = max(now, deaths[0] + 60.0) if len(deaths) == RESPAWNS_A_MINUTE else now
        deaths.append(again)
        heappush(self.timers, (again, life.index))

    def again(self, index: int, at: float) -> None:
        """It could not be started: try again then."""
        heappush(self.timers, (at, index))

    def bar(self, index: int, barred: bool, now: float) -> None:
        """Whether the worker stays away once it has died."""
        self.barred[index] = barred
        if not barred and self.waits[index]:
            self.waits[index] = False
            heappush(self.timers, (now, index))

    def due(self, now: float) -> list[int]:
        """The workers (-1: the evaluator) to start now; those that are barred follow once they are no more."""
        found = []
        while self.timers and self.timers[0][0] <= now:
            index = heappop(self.timers)[1]
            barred = index >= 0 and self.barred[index]
            if barred:
                self.waits[index] = True
            found += [] if barred else [index]
        return found


def cause_of(life: Life) -> str | None:
    """How a process ended by itself that computed a task, if the task's samples may be why."""
    code = life.exit_code
    if code is None or not life.tasks or life.leaving or life.taken_away:
        return None
    if code >= 0:
        return f"exit code {code}"
    return signal.Signals(-code).name if -code in CRASHES else None


def _keep_dying(life: Life) -> JobError:
    """It is the last one of as many as are enough."""
    why = (
        "was killed by a fault on purpose: have it strike less often"
        if life.killed
        else f"{_how(life)}: look for what ends them (too little memory?) in the lines above"
    )
    return JobError(
        f"{DEATHS_BEFORE_GIVING_UP} processes in a row died before they had done anything; the last one, {life.node}, "
        f"{why}",
        "workers_keep_dying",
        node=life.node,
        on_purpose=life.killed,
        exit_code=life.exit_code,
    )


def _how(life: Life) -> str:
    """How its process ended."""
    if life.exit_code is None:
        return "sent an invalid message" if life.invalid else "closed its socket"
    if life.exit_code < 0:
        return f"was ended by {signal.Signals(-life.exit_code).name}"
    return f"exited with code {life.exit_code}"
