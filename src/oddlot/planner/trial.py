"""A trial of a plan: the job's gradients, computed in this process, merged as in a simulated run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isclose

from oddlot.core.optimizers import Optimizer
from oddlot.core.sample_spans import joined
from oddlot.core.tasks import Facts, NodeId
from oddlot.data.batches import Batches
from oddlot.data.seeding import seed_all
from oddlot.engines.payloads import decode_into, encoded
from oddlot.history.goals import Term
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.model.weight_store import Payload, Pool, WeightStore
from oddlot.planner.timeline import Merge, Part, Timeline
from oddlot.train.evaluation import evaluate
from oddlot.train.job import Job
from oddlot.train.learner import Learner, Own
from oddlot.train.learner_inputs import LearnerInputs
from oddlot.train.lr_schedules import by_samples
from oddlot.wire.codec import Codec
from oddlot.wire.plain import Plain

DIVERGED = 4.0
"""Factor of the initial training loss above which a trial has diverged."""
LATEST = 0.5
"""Part of a trial's merges with the training losses of its score."""


class Bench:
    """The initial weights of a job, and the learner that computes its tasks in this process.

    `on_merge` is called before each merge of a trial.
    """

    def __init__(self, job: Job, seed: int, on_merge: Callable[[], None] = lambda: None) -> None:
        self.job, self.on_merge = job, on_merge
        seed_all(seed)
        model = job.model()
        self.layout = Layout.from_module(model, job.as_buffers)
        self.initial = FlatBuffer.empty(self.layout)
        self.initial.gather(model)
        self.pool = Pool(lambda: FlatBuffer.empty(self.layout))
        samples = len(Batches(job.train_data, job.collate))
        constants = self.layout.constants(model)
        self.learner = Learner(
            LearnerInputs(job=job, layout=self.layout, constants=constants, seed=seed, samples=samples)
        )
        self.schedule = by_samples(job.lr_schedule, samples)
        self.can_join = not self.layout.has_buffers and job.max_grad_norm is None
        """Whether updates of one version may be computed as one batch."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The metrics of a version, and the time, cost and epochs of its merge."""

    version: int
    seconds: float
    dollars: float
    epochs: float
    metrics: dict[str, float]


class Trial:
    """A run of a job with one optimizer, along a timeline. It computes only as many merges as `advance` asks for.

    Gradients of one merge that start from the same version are computed as one batch. The result is that of the
    simulator up to rounding, in a fraction of its time. Models with buffers and jobs with clipping are computed update
    by update.

    Args:
        bench: Initial weights and learner of the job.
        timeline: Times and updates of the merges.
        optimizer: Optimizer of the hub.
        goal: A metric compared with a number.
        codec: Codec of the updates. None: unencoded.
        after: Trial to continue from, at its time: its weights and, if the layout is the same, its optimizer's state.
            Updates that were computed from its older versions count as computed from its newest.
    """

    def __init__(
        self,
        bench: Bench,
        timeline: Timeline,
        optimizer: Optimizer,
        goal: Term,
        codec: Codec | None = None,
        after: "Trial | None" = None,
    ) -> None:
        self.bench, self.timeline, self.goal = bench, timeline, goal
        self.codec = None if codec is None or isinstance(codec, Plain) else codec
        weights = bench.pool.take()
        weights.copy_(bench.initial if after is None else after.store.weights)
        self.first = 0 if after is None else timeline.version_at(after.seconds)
        """Version of the timeline that it starts from."""
        self.store: WeightStore = WeightStore(
            weights, optimizer, bench.pool, self.first, schedule=bench.schedule, gates=()
        )
        if after is not None and self.store.fits_optimizer(state := after.store.optimizer_tensors()):
            self.store.load_optimizer(state)
        self.store.acquire(self.first)
        self.losses: list[tuple[float, float]] = [] if after is None else [*after.losses]
        """Time and training loss of each merge."""
        self.history: list[Evaluation] = [] if after is None else [*after.history]
        self.reached: Evaluation | None = None
        """The evaluation that reached the goal. None: not reached so far."""
        self.diverged = False
        self.at: Merge | None = None if after is None else after.at
        """The newest merge. None: nothing is merged."""
        self._oldest = self.first
        self._own: dict[NodeId, Own] = {}

    @property
    def version(self) -> int:
        """Number of merges so far."""
        return self.store.version

    @property
    def seconds(self) -> float:
        """Virtual seconds so far."""
        return self.at.seconds if self.at else 0.0

    @property
    def dollars(self) -> float:
        """Cost so far."""
        return self.at.dollars if self.at else 0.0

    @property
    def epochs(self) -> float:
        """Samples merged so far, in passes over the data."""
        return self.at.epochs if self.at else 0.0

    @property
    def is_over(self) -> bool:
        """Whether the goal is reached, or the trial has diverged."""
        return self.reached is not None or self.diverged

    def advance(self, seconds: float, dollars: float = inf, epochs: float = inf) -> None:
        """Continue until the first of: this virtual time, this cost, these epochs, the goal, or divergence.

        An exception of the bench's `on_merge` ends it between two merges.
        """
        while not self.is_over:
            self.bench.on_merge()
            merge = self.timeline.merge(self.version + 1)
            if merge.seconds > seconds or merge.dollars > dollars or merge.epochs > epochs:
                return
            self._follow(merge)

    def score(self) -> float:
        """Return the mean training loss of the latest half of the merges; infinity after divergence."""
        if self.diverged or not self.losses:
            return inf
        since = self.seconds * (1 - LATEST)
        latest = [loss for seconds, loss in self.losses if seconds >= since]
        return sum(latest) / len(latest)

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the newest weights."""
        return evaluate(self.bench.job, self.bench.learner, self.store.weights)

    def close(self) -> None:
        """Return the memory of all versions."""
        for version in range(self._oldest, self.version + 1):
            self.store.release(version)
        self.bench.pool.give(self.store.weights)

    def _follow(self, merge: Merge) -> None:
        """Compute and merge the updates of a merge."""
        shares, losses, samples = {}, 0.0, 0
        kind = merge.parts[0].task.kind
        for part in self._joined(merge.parts):
            loss = self._compute(part)
            shares[part.task.id] = part.share
            losses += loss * part.samples
            samples += part.samples
        if kind == "weights":
            self.store.blend(shares)
        else:
            self.store.step(shares, merged=merge.merged)
        self.store.acquire(self.version)
        oldest = max(self.first, merge.oldest)
        for version in range(self._oldest, oldest):
            self.store.release(version)
        self._oldest, self.at = oldest, merge
        self.losses.append((merge.seconds, losses / samples))
        self.diverged = not losses / samples <= DIVERGED * max(self.losses[0][1], 1e-9)
        if merge.is_evaluated and not self.diverged:
            self._evaluate(merge)

    def _evaluate(self, merge: Merge) -> None:
        found = Evaluation(self.version, merge.seconds, merge.dollars, merge.epochs, self.evaluate())
        self.history.append(found)
        value = found.metrics.get(self.goal.figure)
        if value is not None and self.goal.is_met_by(value):
            self.reached = found

    def _joined(self, parts: Sequence[Part]) -> list[Part]:
        """Return the updates, with those of one version and one share per sample joined."""
        if len(parts) == 1 or not self.bench.can_join or parts[0].task.kind != "gradient":
            return list(parts)
        by_version: dict[int, list[Part]] = {}
        for part in parts:
            by_version.setdefault(part.task.version, []).append(part)
        found = []
        for same in by_version.values():
            rate = same[0].share / same[0].samples
            if not all(isclose(part.share, rate * part.samples, rel_tol=1e-6) for part in same):
                found += same
                continue
            spans = joined([span for part in same for span in part.task.spans])
            task = replace(same[0].task, spans=spans)
            found.append(Part(task, sum(part.samples for part in same), sum(part.share for part in same)))
        return found

    def _compute(self, part: Part) -> float:
        """Compute an update, add it to the store, and return its mean loss."""
        bench, task = self.bench, part.task
        base = max(self.first, task.version)
        learner, weights = bench.learner, self.store.acquire(base)
        out = bench.pool.take()
        learner.own = self._own.setdefault(task.node, Own())
        learner.holds = None
        learner.load(base, weights)
        work = learner.step(weights, task, out)
        assert work is not None, "nothing stops a trial"
        if self.codec is not None:
            packet = encoded(out, self.codec, task.kind, weights)
            decode_into(out, self.codec, packet, task.kind, weights)
        self.store.release(base)
        facts = Facts(task.id, task.node, base, part.samples, task.kind)
        self.store.receive(facts, Payload(task.kind, out, lambda: bench.pool.give(out)))
        return inf if work.loss is None else work.loss
