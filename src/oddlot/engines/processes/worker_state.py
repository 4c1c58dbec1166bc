"""The state of a worker process, as known to the hub."""

from dataclasses import dataclass

from oddlot.core.tasks import NodeId
from oddlot.engines.processes.respawn import EVALUATOR_INDEX, Death


@dataclass(slots=True, eq=False)
class WorkerState:
    """The state of a worker process, from its start to its end."""

    node: NodeId
    index: int
    """Number of the worker. -1: the evaluator."""
    since: float
    """Time of its request or, later, of its loss."""
    pid: int = 0
    """Process id. 0: unknown."""
    ready: bool = False
    leaving: bool = False
    productive: bool = False
    """Whether it has returned an update."""
    reported: bool = False
    """Whether `Lost` was reported."""
    taken_away: bool = False
    """Whether it is ended for a reason other than its own failure."""
    killed: bool = False
    """Whether it is ended by fault injection."""
    outside: bool = False
    """Whether the cause of its end is external: its node was lost, or ran out of memory."""
    invalid: bool = False
    """Whether it is ended because of an invalid message."""
    silent_seconds: float | None = None
    """Seconds without a sign of life until it is ended. None if it is not silent."""
    exit_code: int | None = None
    """Exit code, or the negative number of the signal that killed it. None if unknown, or if the hub ended it."""

    @property
    def is_evaluator(self) -> bool:
        """Whether it evaluates instead of computing tasks."""
        return self.index == EVALUATOR_INDEX

    def death(self, had_tasks: bool, busy: bool) -> Death:
        """Return its end, for the respawn policy. `busy`: whether it had tasks or pending evaluations."""
        return Death(
            self.node,
            self.index,
            self.exit_code,
            had_tasks=had_tasks,
            idle=self.ready and not busy,
            expected=self.leaving or self.taken_away,
            productive=self.productive,
            killed=self.killed,
            outside=self.outside,
            invalid=self.invalid,
            silent_seconds=self.silent_seconds,
        )
