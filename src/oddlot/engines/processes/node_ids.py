"""The ids of the workers of a run."""

from collections.abc import Collection, Sequence

from oddlot.core.tasks import NodeId, worker_name
from oddlot.engines.processes.respawn import EVALUATOR_INDEX

EVALUATOR = "evaluator"
"""Id of the evaluator process."""


class NodeIds:
    """The ids of workers: never reused, and different from those in `taken`."""

    def __init__(self, names: Sequence[str], taken: Collection[NodeId]) -> None:
        self.names, self.taken = names, taken
        self.lives = [0] * len(names)

    def current(self, index: int) -> NodeId:
        """Return the id of this worker's latest process."""
        return worker_name(self.names[index], self.lives[index])

    def next(self, index: int) -> NodeId:
        """Return the id of this worker's next process."""
        if index == EVALUATOR_INDEX:
            return EVALUATOR
        self.lives[index] += 1
        while (node := worker_name(self.names[index], self.lives[index])) in self.taken:
            self.lives[index] += 1
        return node
