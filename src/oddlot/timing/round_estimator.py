"""Measurement of round times during a run."""

from collections import deque
from collections.abc import Sequence
from statistics import fmean

from oddlot.core import events
from oddlot.core.commands import Abort, Start, Step
from oddlot.core.records import Record
from oddlot.core.sample_spans import samples_in
from oddlot.core.tasks import NodeId, TaskId, node_of
from oddlot.timing.order_statistics import rounds_of
from oddlot.timing.response_times import Measured

MIN_ROUNDS, MAX_ROUNDS = 4, 8
"""Number of measured rounds that an estimate needs, and number of rounds that are kept."""
MAX_GROUPS = 32
"""Largest number of groups of workers. With more workers, workers of similar speed share a group."""
ENOUGH = 0.75
"""Share of the workers that must have finished in a measured round."""
SILENT = 8
"""Steps without a message until a worker is no longer expected to finish."""
STEPS_BETWEEN = 100
"""Steps between estimates, unless the workers change."""

Answer = tuple[float, float]
"""Seconds of communication, and of computation per sample."""
Started = tuple[float, int]
"""Start time and samples of a task."""


class RoundEstimator:
    """Estimates the times of rounds from the records of a run.

    Only rounds without cancelled tasks are measured, because other rounds show only the fast workers. A worker that has
    not finished by the end of such a round counts with its last time, or with its time so far if that is longer. Each
    measured time of a worker is equally likely and independent of other workers. Communication time is all time except
    computation. Computation time is proportional to the samples.
    """

    def __init__(self, loads: Sequence[int]) -> None:
        self.loads = loads
        """Samples per task of the estimated times."""
        self.nodes: dict[NodeId, int] = {}
        """Step of the last message of each present worker."""
        self.steps = 0
        self.started: dict[TaskId, Started] = {}
        """Tasks of the current round."""
        self.cancelled: dict[TaskId, Started] = {}
        """Cancelled tasks without a confirmation of their workers."""
        self.round: dict[NodeId, Answer] = {}
        self.rounds: deque[dict[NodeId, Answer]] = deque(maxlen=MAX_ROUNDS)
        self.wait = 0
        """Steps until the next estimate."""

    def __call__(self, record: Record) -> events.RoundTimesFitted | None:
        """Handle a record, and return a new estimate, if any."""
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
            case events.Joined(node):
                self.nodes[node], self.wait = self.steps, 0
            case events.Leaving(node) | events.Lost(node):
                self.nodes.pop(node, None)
                self.round.pop(node, None)
                self.cancelled = {task: at for task, at in self.cancelled.items() if node_of(task) != node}
                self.wait = 0
            case events.Cancelled(task) | events.UpdateRejected(task):
                self.started.pop(task, None)
                self.cancelled.pop(task, None)
            case events.Arrived(facts) if facts.id in self.cancelled:
                del self.cancelled[facts.id]
            case events.Arrived(facts) if facts.id in self.started:
                since, _ = self.started.pop(facts.id)
                if facts.samples and facts.sender in self.nodes:  # the update may be a part of the task
                    computing = max(0.0, facts.seconds.get("compute", 0.0) + facts.seconds.get("load", 0.0))
                    communicating = max(0.0, record.now - since - computing)
                    # of several tasks in flight, only the first did not wait for another task
                    self.round.setdefault(facts.sender, (communicating, computing / facts.samples))

    def _close(self, now: float) -> events.RoundTimesFitted | None:
        """Measure a round without cancelled tasks."""
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
        """Return the worker's last times if they are longer than `seconds`, or else `seconds`."""
        for answers in reversed(self.rounds):
            if node in answers:
                communication, computation = answers[node]
                return answers[node] if communication + computation * samples > seconds else (seconds, 0.0)
        return seconds, 0.0

    def _fitted(self) -> events.RoundTimesFitted:
        """Return the estimate for the present workers."""
        own = ([answers[node] for answers in self.rounds if node in answers] for node in self.nodes)
        known = sorted((answers for answers in own if answers), key=_pace)
        groups = min(MAX_GROUPS, len(known))
        workers = list[Measured]()
        for group in range(groups):
            alike = known[group * len(known) // groups : (group + 1) * len(known) // groups]
            communication, computation = zip(*(one for answers in alike for one in answers), strict=True)
            workers += [Measured(communication, computation)] * len(alike)
        return events.RoundTimesFitted(rounds_of(workers, self.loads))


def _teller(event: events.Event | events.Stimulus) -> NodeId | None:
    """Return the worker that sent this event, or None for other events."""
    match event:
        case events.Arrived(facts):
            return facts.sender
        case events.Cancelled(task) | events.UpdateRejected(task):
            return node_of(task)
    return None


def _pace(answers: list[Answer]) -> float:
    """Return the mean seconds of a task with one sample."""
    return fmean(communication + computation for communication, computation in answers)
