"""What the logs of peers show about their work: the present task of each, and which samples ended or hung peers."""

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

    A peer writes the start of a task into its log before it computes it, so that the log of a dead peer has its task.
    """

    skip_bad: bool = False
    strikes: Counts = field(default_factory=dict)
    """Processes that ended or hung, by sample, as in the ledger. Peers that join start with these counts."""
    tasks: dict[NodeId, Task] = field(default_factory=dict)
    """Present task of each peer, which has one at a time."""
    productive: set[NodeId] = field(default_factory=set)
    """Peers that have finished a task."""
    evicted: set[NodeId] = field(default_factory=set)
    """Peers with a hung task, which end themselves."""
    finished: set[NodeId] = field(default_factory=set)
    """Peers that have reached their goal."""
    cause: str = ""
    """How the last process ended that had a task which may be the reason."""

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
        """Whether a peer had no task, and had finished some or the run is about to end."""
        return node not in self.tasks and (node in self.productive or bool(self.finished))

    def strike(self, node: NodeId, why: str) -> None:
        """Count that a peer ended or hung during its task. Raise BadSamples the third time, unless they are skipped."""
        self.cause = why
        deadly(count(self.strikes, self.tasks.pop(node).spans), why, skip_bad=self.skip_bad)

    def blame(self) -> BadSamples | None:
        """Return the error of a run that has lost all its peers; None if no samples may be the reason."""
        if not self.strikes:
            return None
        why = f"were being computed by peers that {self.cause}, and no peer is left. Fix the samples"
        return BadSamples(joined(list(by_position(self.strikes))), why)
