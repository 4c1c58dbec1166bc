"""Views of a run that are narrowed to some of its workers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from oddlot.core.peers import Peers
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.strategy import ConductorState, View
from oddlot.core.tasks import NodeId, Task, TaskId
from oddlot.core.worker_stats import WorkerStats


@dataclass(slots=True)
class _PartOfState:
    """The state of a conductor without the workers and tasks that are not shown."""

    now: float
    version: int
    ledger: SampleLedger
    batch: int
    slots: dict[NodeId, int]
    idle: dict[NodeId, None]
    stalled: dict[NodeId, None]
    busy: dict[NodeId, dict[TaskId, float]]
    open: dict[TaskId, Task]
    kept: dict[str, int]
    rng: Random
    worker_stats: WorkerStats
    peers: Peers
    whole: ConductorState
    merges: Sequence[int]

    def expects(self, task: TaskId) -> bool:
        """Return whether an update of this task would count."""
        return self.whole.expects(task)

    def staleness(self, version: int) -> int:
        """Return the number of merges of these workers since a version."""
        return sum(merged > version for merged in self.merges)


def sub_view(
    view: View,
    workers: Collection[NodeId],
    batch: int,
    merges: Sequence[int] = (),
    assigned: Mapping[NodeId, int] = MappingProxyType({}),
) -> View:
    """Return a view that shows only these workers, including leaving workers, and their tasks.

    It shares the samples, versions, statistics and random generator of the run. Takes time in proportion to `workers`.

    Args:
        view: View of the run.
        workers: The workers.
        batch: Batch size to show, in samples.
        merges: Versions that these workers have made, newer than the start of their oldest task. Staleness counts them.
        assigned: Number of tasks that workers are assigned in the present call of `on`. They have fewer free slots.
    """
    state = view._state
    slots = {node: state.slots[node] - assigned.get(node, 0) for node in workers if node in state.slots}
    busy = {node: state.busy[node] for node in workers if node in state.busy}
    return View(
        _PartOfState(
            state.now,
            state.version,
            state.ledger,
            batch,
            slots,
            {node: None for node in workers if node in state.idle and slots[node]},
            {node: None for node in workers if node in state.stalled},
            busy,
            {task: state.open[task] for tasks in busy.values() for task in tasks if task in state.open},
            state.kept,
            state.rng,
            state.worker_stats,
            state.peers,
            state,
            merges,
        )
    )
