"""A trial of a plan: the job's gradients, computed in this process, merged as in a simulated run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isclose

from oddlot.core.optimizers import Optimizer
from oddlot.core.sample_spans import joined
from oddlot.core.tasks import Facts, NodeId
from oddlot.data.batches import Cuts
from oddlot.data.seeding import seed_all
from oddlot.engines.payloads import decode_into, encoded, users_code
from oddlot.history.goals import Term
from oddlot.model.arrival import norm_of
from oddlot.model.block_pool import Pool
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.model.payload import Payload
from oddlot.model.weight_store import WeightStore
from oddlot.planner.timeline import Merge, Part, Timeline
from oddlot.train.devices import choose_device
from oddlot.train.evaluation import evaluate
from oddlot.train.job import Job, layout_of, made
from oddlot.train.learner import Learner, Own
from oddlot.train.learner_inputs import LearnerInputs
from oddlot.train.learning_rates import rates_of
from oddlot.wire.codec import Codec
from oddlot.wire.plain import Plain

DIVERGED = 4.0
"""Factor of the initial training loss above which a trial has diverged."""
LATEST = 0.5
"""Part of a trial's merges with the training losses of its score."""
SAME = 0.01
"""Largest distance of two gradients that count as equal, relative to their norm."""


class Bench:
    """The initial weights of a job, and the learner that computes its tasks in this process.

    `on_merge` is called before each merge of a trial.
    """

    def __init__(self, job: Job, seed: int, on_merge: Callable[[], None] = lambda: None) -> None:
        self.job, self.on_merge = job, on_merge
        seed_all(seed)
        model = made(job)
        self.layout = layout_of(job, model)
        self.initial = FlatBuffer.empty(self.layout)
        self.initial.gather(model)
        self.pool = Pool(lambda: FlatBuffer.empty(self.layout))
        samples = job.sample_order().size
        constants = self.layout.constants(model)
        inputs = LearnerInputs(job=job, layout=self.layout, constants=constants, seed=seed, samples=samples)
        with users_code("the planner"):
            if job.worker_init is not None:
                job.worker_init()
            self.learner = Learner(inputs, choose_device(job.device))
        self.samples = samples
        self.can_join = False if self.layout.has_buffers else None
        """Whether updates of one version may be computed as one batch. None: not known before the first of them."""

    def compute(
        self, part: Part, version: int, weights: FlatBuffer, own: Own, cuts: Cuts
    ) -> tuple[float, FlatBuffer]:
        """Return the mean loss of an update, and the update in a block of the pool. `cuts` are the data's shards."""
        learner, out = self.learner, self.pool.take()
        learner.own, learner.holds = own, None
        learner.set_shards(cuts)
        with users_code("the planner"):
            learner.load(version, weights)
            work = learner.step(weights, part.task, out)
        assert work is not None, "nothing stops a trial"
        return inf if work.loss is None else work.loss, out

    def check_joined(self, parts: Sequence[Part], joint: Part, weights: FlatBuffer, cuts: Cuts) -> bool:
        """Return whether the gradient of a batch is the sum of those of its parts, times their shares.

        It is not if the loss is a sum instead of a mean, if a layer normalizes by the batch, or with dropout.
        """
        total, norm = FlatBuffer.empty(self.layout), 0.0
        for part, sign in (*((part, 1.0) for part in parts), (joint, -1.0)):
            _, out = self.compute(part, part.task.version, weights, Own(), cuts)
            norm = part.share * norm_of(out)
            for index in self.layout.of_role("trainable"):
                total.section(index).add_(out.section(index), alpha=sign * part.share)
            self.pool.give(out)
        return norm_of(total) <= SAME * norm


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
    simulator up to rounding, in a fraction of its time. Updates are computed one by one if a batch would have another
    gradient: in models with buffers, dropout or batch statistics.

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
        self.start = 0.0 if after is None else after.seconds
        """Virtual seconds at its first version."""
        self.store: WeightStore = WeightStore(
            weights,
            optimizer,
            bench.pool,
            self.first,
            rates=rates_of(replace(bench.job, optimizer=optimizer), bench.samples),
            max_grad_norm=bench.job.max_grad_norm,
            gates=(),
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
        self.ended = ""
        """Text that the fleet has no machines left. Empty otherwise."""
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
        """Whether the goal is reached, the trial has diverged, or the fleet has no machines left."""
        return self.reached is not None or self.diverged or bool(self.ended)

    def advance(self, seconds: float, dollars: float = inf, epochs: float = inf) -> None:
        """Continue until the first of: this time, this cost, these epochs, the goal, divergence, or no machines left.

        An exception of the bench's `on_merge` ends it between two merges.
        """
        while not self.is_over:
            self.bench.on_merge()
            if not self.timeline.has(self.version + 1):
                self.ended = self.timeline.ended
                return
            merge = self.timeline.merge(self.version + 1)
            if merge.seconds > seconds or merge.dollars > dollars or merge.epochs > epochs:
                return
            self._follow(merge)

    def score(self) -> float:
        """Return the mean training loss of the latest half of the merges; infinity after divergence."""
        if self.diverged or not self.losses:
            return inf
        since = self.seconds - LATEST * (self.seconds - self.start)
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
        """Return the updates, with those of one version joined where they are a batch or less."""
        if len(parts) == 1 or self.bench.can_join is False or parts[0].task.kind != "gradient":
            return list(parts)
        by_version: dict[int, list[Part]] = {}
        for part in parts:
            by_version.setdefault(part.task.version, []).append(part)
        found = list[Part]()
        for same in by_version.values():
            joint = _joint(same, self.bench.job.batch_size) if len(same) > 1 else None
            if joint is not None and self.bench.can_join is None:
                self.bench.can_join = self._check_joined(same, joint)
            found += same if joint is None or not self.bench.can_join else [joint]
        return found

    def _check_joined(self, parts: Sequence[Part], joint: Part) -> bool:
        base = max(self.first, joint.task.version)
        weights = self.store.acquire(base)
        try:
            return self.bench.check_joined(parts, joint, weights, self.timeline.cuts)
        finally:
            self.store.release(base)

    def _compute(self, part: Part) -> float:
        """Compute an update, add it to the store, and return its mean loss."""
        task, pool = part.task, self.bench.pool
        base, own = max(self.first, task.version), self._own.setdefault(task.node, Own())
        weights = self.store.acquire(base)
        loss, out = self.bench.compute(part, base, weights, own, self.timeline.cuts)
        if self.codec is not None:
            packet = encoded(out, self.codec, task.kind, weights)
            decode_into(out, self.codec, packet, task.kind, weights)
        self.store.release(base)
        facts = Facts(task.id, task.node, base, part.samples, task.kind)
        self.store.receive(facts, Payload(task.kind, out, lambda: pool.give(out)))
        return loss


def _joint(parts: Sequence[Part], batch: int) -> Part | None:
    """Return the updates as one, or None if they are more than a batch, or if their shares per sample differ."""
    rate = parts[0].share / parts[0].samples
    if sum(part.samples for part in parts) > batch or not all(
        isclose(part.share, rate * part.samples, rel_tol=1e-6) for part in parts
    ):
        return None
    spans = joined([span for part in parts for span in part.task.spans])
    task = replace(parts[0].task, spans=spans)
    return Part(task, sum(part.samples for part in parts), sum(part.share for part in parts))
