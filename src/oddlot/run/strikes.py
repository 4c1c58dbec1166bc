"""The samples of peers with a hung computation, for the peers that replace them."""

from oddlot.core.commands import Evict, Start
from oddlot.core.records import Record
from oddlot.core.tasks import NodeId, Task


class Strikes:
    """An observer that counts how often the computation of a peer hung on each sample.

    `counts` has the form of `Ledger.strikes`: a peer that joins continues with the counts of the one that it replaces,
    so that its ledger skips or reports a sample the third time.
    """

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.tasks: dict[NodeId, Task] = {}
        """Latest task of each peer, which has one at a time."""

    def __call__(self, record: Record) -> None:
        for action in record.actions:
            match action:
                case Start(task):
                    self.tasks[task.node] = task
                case Evict(node) if node in self.tasks:
                    self._count(self.tasks.pop(node))

    def _count(self, task: Task) -> None:
        for epoch, start, stop in task.spans:
            for position in range(start, stop):
                key = f"{epoch}:{position}"
                self.counts[key] = self.counts.get(key, 0) + 1
