"""Runs that train a model of a few numbers without PyTorch, with the real strategy, conductor and simulator.

Use them in tests of decisions that depend on values of gradients or metrics only.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from statistics import fmean

from oddlot import Machine, Strategy
from oddlot.core.commands import DriftOf
from oddlot.core.conductor import Conductor
from oddlot.core.records import Record
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.sample_spans import Span
from oddlot.core.tasks import Facts, NodeId, Task, TaskLoss, UpdateId
from oddlot.data.batches import order
from oddlot.engines.loop import drive
from oddlot.engines.simulated.engine import SimulatedHub
from oddlot.model.merging import MergeNorms
from oddlot.run.training import host_of


class Gradient(list[float]):
    """The gradient of one update."""

    def release(self) -> None:
        """Ignore the call, because no memory is held."""


Loss = Callable[[Sequence[float], float], list[float]]
"""Function of the weights and the mean of the samples that returns the gradient."""


@dataclass
class PlainModel:
    """A model of plain SGD. Its metric `error` is the first weight."""

    numbers: Sequence[float]
    """The data, in the order of a real run with seed 0."""
    loss: Loss = lambda weights, mean: [mean]
    lr: float = 0.01
    weights: list[list[float]] = field(default_factory=lambda: [[1.0]])
    """Weights of each version."""
    cuts: tuple[int, ...] = ()
    """Bounds of the shards. Empty: the data have no shards."""
    inbox: dict[UpdateId, Gradient] = field(default_factory=dict)
    merged: list[list[float]] = field(default_factory=list)
    """Gradients of the current window."""
    before: list[float] = field(default_factory=list)
    """Sum of the gradients of the previous window."""
    bytes_down: int = 0
    bytes_up: int = 0

    def values(self, spans: Sequence[Span]) -> list[float]:
        """Return the numbers at these positions."""
        places = (order(0, epoch, len(self.numbers), self.cuts or 1)[a:b].tolist() for epoch, a, b in spans)
        return [self.numbers[place] for place in chain.from_iterable(places)]

    def compute(self, task: Task, weights: list[float]) -> tuple[TaskLoss, Gradient]:
        """Return a loss of 0 and the gradient."""
        return TaskLoss(0.0), Gradient(self.loss(weights, fmean(self.values(task.spans))))

    def acquire(self, version: int) -> list[float]:
        """Return the weights of a version. All versions are kept."""
        return self.weights[version]

    def evaluate(self, weights: list[float]) -> dict[str, float]:
        """Return the first weight, as the metric and as the loss."""
        return {"error": weights[0], "loss": weights[0]}

    def receive(self, facts: Facts, payload: Gradient) -> None:
        """Keep an update until it is merged."""
        self.inbox[facts.id] = payload

    def drop(self, update: UpdateId) -> None:
        """Remove an update."""
        del self.inbox[update]

    def release(self, version: int) -> None:
        """Do nothing."""

    acquire_evaluated, release_evaluated = acquire, release

    def forget(self, node: NodeId) -> None:
        """Do nothing."""

    def step(
        self,
        shares: Mapping[UpdateId, float],
        measure: int = 0,
        merged: int | None = None,
        drift: DriftOf | None = None,
        chunks: Sequence[int] | None = None,
    ) -> MergeNorms | None:
        """Take a step of SGD. Measure windows of `measure` steps like `oddlot.model.merging.Meter`."""
        parts = [[share * one for one in self.inbox.pop(update)] for update, share in shares.items()]
        mean = [sum(each) for each in zip(*parts, strict=True)]
        self.weights.append([one - self.lr * d for one, d in zip(self.weights[-1], mean, strict=True)])
        if not measure:
            return None
        self.merged.append(mean)
        inner = None
        if len(self.merged) == measure:
            window = [sum(each) for each in zip(*self.merged, strict=True)]
            if self.before:
                inner = sum(a * b for a, b in zip(self.before, window, strict=True))
            self.before, self.merged = window, []
        return MergeNorms(self.lr, inner)

    blend = step


@dataclass
class Played:
    """The result of `played`, with the attributes of `oddlot.Run` that tests use."""

    records: list[Record]
    seconds: float


def played(
    strategy: Strategy,
    machines: Sequence[Machine],
    model: PlainModel,
    batch: int,
    *,
    versions: float = inf,
    seconds: float = inf,
    epochs: int | None = None,
    evaluate_every: float = inf,
    in_flight: int = 1,
) -> Played:
    """Train for a number of `versions`, `seconds` or `epochs`. Evaluate every `evaluate_every` versions."""
    strategy = deepcopy(strategy)
    conductor = Conductor(
        strategy, SampleLedger(len(model.numbers), epochs, cuts=list(model.cuts)), batch, in_flight
    )
    engine, records = SimulatedHub(machines, model, batch), list[Record]()
    host = host_of(conductor, model, engine, [records.append])
    due = evaluate_every

    def ended() -> str:
        nonlocal due
        if conductor.version >= due:
            due += evaluate_every
            host.evaluate(conductor.version)
        return "done" if conductor.done or conductor.version >= versions or engine.now >= seconds else ""

    drive(host, engine, ended, lambda: seconds)
    return Played(records, engine.now)
