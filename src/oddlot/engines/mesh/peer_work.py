"""The work of peers, as read from their logs: current tasks, and samples that have ended or hung peers."""

from dataclasses import dataclass, field

from oddlot.core.commands import Evict, Skip, Start
from oddlot.core.events import Arrived, Cancelled, GoalReached
from oddlot.core.records import Record
from oddlot.core.sample_ledger import Counts, by_position, count, deadly, forget
from oddlot.core.sample_spans import joined
from oddlot.core.support.errors import BadSamples
from oddlot.core.tasks import NodeId, Task


@dataclass
class PeerWork:
    """An observer of the logs of all peers, for the launcher.

    A peer logs the start of a task before it computes the task, so the log of a dead peer has its last task.
    """

    skip_bad: bool = False
    strikes: Counts = field(default_factory=dict)
    """Number of processes that ended or hung, by sample, as in the ledger. New peers start with these counts."""
    tasks: dict[NodeId, Task] = field(default_factory=dict)
    """Current task of each peer."""
    productive: set[NodeId] = field(default_factory=set)
    """Peers that have finished a task."""
    evicted: set[NodeId] = field(default_factory=set)
    """Peers with a hung task. They end themselves."""
    finished: set[NodeId] = field(default_factory=set)
    """Peers that have reached their goal."""
    cause: str = ""
    """How the last process with a suspected task ended."""

    def __call__(self, record: Record) -> None:
        node = record.peer or ""
        match record.event:
            case Arrived(update) if (task := self.tasks.get(node)) and task.id == update.id:
                self.productive.add(node)
                forget(self.strikes, self.tasks.pop(node).spans)
            case Cancelled():
                self.tasks.pop(node, None)
            case GoalReached():
                self.finished.add(node)
        for action in record.actions:
            match action:
                case Start(task):
                    self.tasks[node] = task
                case Evict() if node in self.tasks:
                    self.evicted.add(node)
                    count(self.strikes, self.tasks.pop(node).spans)
                case Skip(spans):
                    forget(self.strikes, spans)

    def is_idle(self, node: NodeId) -> bool:
        """Return whether a peer has no task, and has finished tasks or the run is about to end."""
        return node not in self.tasks and (node in self.productive or bool(self.finished))

    def strike(self, node: NodeId, why: str) -> None:
        """Count the end or hang of a peer against its task's samples.

        Raise BadSamples if it is the third for the same samples, unless bad samples are skipped.
        """
        self.cause = why
        deadly(count(self.strikes, self.tasks.pop(node).spans), why, skip_bad=self.skip_bad)

    def blame(self) -> BadSamples | None:
        """Return the error of a run that has lost all its peers, or None if no samples are suspected."""
        if not self.strikes:
            return None
        why = f"were being computed by peers that {self.cause}, and no peer is left. Fix the samples"
        return BadSamples(joined(list(by_position(self.strikes))), why)
