"""What rounds take, measured while a run goes on."""

from collections import deque
from collections.abc import Sequence
from statistics import fmean

from oddlot.core.commands import Abort, Start, Step
from oddlot.core.events import Arrived, Cancelled, Event, Fitted, Joined, Leaving, Lost, Refused, Stimulus
from oddlot.core.records import Record
from oddlot.core.spans import samples_in
from oddlot.core.tasks import NodeId, TaskId, node_of
from oddlot.timing.order_statistics import rounds_of
from oddlot.timing.response_times import Measured

MIN_ROUNDS, MAX_ROUNDS = 4, 8
"""of which the latest are kept"""
MAX_GROUPS = 32
"""with more workers those that are about as fast are taken for alike"""
ENOUGH = 0.75
"""of the workers have answered in a round that is learnt from"""
SILENT = 8
"""steps in which nothing was heard of a worker, of which no answer is expected then"""
STEPS_BETWEEN = 100
"""that are told, unless the fleet is another one"""

Answer = tuple[float, float]
"""seconds of communication, and of computation for each sample"""
Started = tuple[float, int]
"""when a task was, and of how many samples it is"""


class RoundTimes:
    """Sees every record of a run, and says what rounds take once it knows.

    It learns from rounds in which nobody was cancelled: of others only the fast answers would be known. Who is still
    out then, as its lease has lapsed or it has not heard yet that it was cancelled before, takes as long as the last
    time, or as it is out where that is longer. Each of a worker's answers is as likely again, whatever the others' are;
    communication is all that was not computation, which is in proportion to the samples.
    """

    def __init__(self, loads: Sequence[int]) -> None:
        self.loads = loads
        """samples of a task that are asked about"""
        self.nodes: dict[NodeId, int] = {}
        """who is there, and the step at which it was heard of last"""
        self.steps = 0
        self.started: dict[TaskId, Started] = {}
        """of this round"""
        self.cancelled: dict[TaskId, Started] = {}
        """of whom nothing was heard since"""
        self.round: dict[NodeId, Answer] = {}
        self.rounds: deque[dict[NodeId, Answer]] = deque(maxlen=MAX_ROUNDS)
        self.wait = 0
        """steps until it may be told again"""

    def __call__(self, record: Record) -> Fitted | None:
        """What is to be told after this record."""
        self._hear(record)
        steps = any(isinstance(action, Step) for action in record.actions)
        aborted = [action.task for action in record.actions if isinstance(action, Abort)]
        self.cancelled |= {task: self.started[task] for task in aborted if task in self.started}
        self.wait -= steps
        self.steps += steps
        fitted = self._close(record.now) if steps and not aborted else None
        if steps:
            self.started, self.round = {}, {}
        for action in record.actions:
            if isinstance(action, Start):
                self.started[action.task.id] = record.now, samples_in(action.task.spans)
        return fitted

    def _hear(self, record: Record) -> None:
        if (node := _teller(record.event)) in self.nodes:
            self.nodes[node] = self.steps
        match record.event:
            case Joined(node):
                self.nodes[node], self.wait = self.steps, 0
            case Leaving(node) | Lost(node):
                self.nodes.pop(node, None)
                self.round.pop(node, None)
                self.cancelled = {task: at for task, at in self.cancelled.items() if node_of(task) != node}
                self.wait = 0
            case Cancelled(task) | Refused(task):
                self.started.pop(task, None)
                self.cancelled.pop(task, None)
            case Arrived(facts) if facts.id in self.cancelled:
                del self.cancelled[facts.id]
            case Arrived(facts) if facts.id in self.started:
                since, _ = self.started.pop(facts.id)
                if facts.samples and facts.sender in self.nodes:  # of a task that was handed over, a part
                    computing = max(0.0, facts.seconds.get("compute", 0.0) + facts.seconds.get("load", 0.0))
                    communicating = max(0.0, record.now - since - computing)
                    # Of several tasks at once the first alone did not wait for another one.
                    self.round.setdefault(facts.sender, (communicating, computing / facts.samples))

    def _close(self, now: float) -> Fitted | None:
        """A round in which nobody was cancelled."""
        there = sum(self.steps - heard < SILENT for heard in self.nodes.values())
        if not self.round or len(self.round) < ENOUGH * there:
            return None
        for task, (since, samples) in (self.started | self.cancelled).items():
            if (node := node_of(task)) in self.nodes:
                self.round.setdefault(node, self._at_least(now - since, node, samples))
        self.rounds.append(self.round)
        if len(self.rounds) < MIN_ROUNDS or self.wait > 0:
            return None
        self.wait = STEPS_BETWEEN
        return self._fitted()

    def _at_least(self, seconds: float, node: NodeId, samples: int) -> Answer:
        """As the last time, where that would not be over yet."""
        for answers in reversed(self.rounds):
            if node in answers:
                communication, computation = answers[node]
                return answers[node] if communication + computation * samples > seconds else (seconds, 0.0)
        return seconds, 0.0

    def _fitted(self) -> Fitted:
        """Of the workers who are here now."""
        own = ([answers[node] for answers in self.rounds if node in answers] for node in self.nodes)
        known = sorted((answers for answers in own if answers), key=_pace)
        groups = min(MAX_GROUPS, len(known))
        workers = list[Measured]()
        for group in range(groups):
            alike = known[group * len(known) // groups : (group + 1) * len(known) // groups]
            communication, computation = zip(*(one for answers in alike for one in answers), strict=True)
            workers += [Measured(communication, computation)] * len(alike)
        return Fitted(rounds_of(workers, self.loads))


def _teller(event: Event | Stimulus) -> NodeId | None:
    """Whom it tells of."""
    match event:
        case Arrived(facts):
            return facts.sender
        case Cancelled(task) | Refused(task):
            return node_of(task)
    return None


def _pace(answers: list[Answer]) -> float:
    """Seconds of a task of one sample, on average."""
    return fmean(communication + computation for communication, computation in answers)
