"""The automatic optimizer of Omnivore: a grid search over groups, momentum and learning rate. Baseline of the planner.

Source: Hadjis et al., "Omnivore" (2016), section 5, in the form of its published code (`omnivore.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from oddlot.core.optimizers import SGD
from oddlot.data.seeding import preserve_random_state
from oddlot.history.goals import Term
from oddlot.machines.market import Fleet, names_in
from oddlot.planner.candidates import group_counts
from oddlot.planner.timeline import Timeline
from oddlot.planner.trial import Bench, Trial
from oddlot.run.config import RunConfig
from oddlot.strategies.groups import Groups
from oddlot.strategies.synchronous import Synchronous
from oddlot.train.job import Job

TINY = 1e-6
LAST_LOSSES = 10
"""Updates with the training losses of a probe's score."""
MOMENTUM_AFTER_HALVING = 0.6
"""Momentum that counts as the last choice after the groups were halved."""


class Point(NamedTuple):
    """A point of the grid."""

    lr: float
    momentum: float


@dataclass(frozen=True)
class OmnivoreSettings:
    """Settings of the optimizer. The defaults are those of the paper's code for small data sets."""

    probe_seconds: float = 60.0
    """Seconds of a probe at the cold start."""
    steady_probe_seconds: float = 200.0
    """Seconds of a probe in the steady state."""
    training_seconds: float = 10_000.0
    """Seconds of training between two searches."""
    lrs: Sequence[float] = (0.1, 0.01, 0.001, 0.0001)
    """Learning rates for one group. More groups try the last choice and a tenth of it."""
    momenta: Sequence[float] = (0.0, 0.3, 0.6, 0.9)
    """Momenta. One group tries only the largest."""
    buffer: float = 1.0
    """Factor on the lowest loss at the cold start. A larger rate or momentum with a loss below it is preferred."""
    steady_buffer: float = 1.01
    """The factor in the steady state."""
    saturation: float = 0.10
    """Minimum speed-up of the updates, as a share, to try more groups."""
    snapshot_every: float = 0.07
    """Interval of snapshots, as a share of a training phase. The next search starts from the last snapshot."""
    refine_seconds: float = 0.0
    """Seconds of a probe with finer momenta around the best. 0: no such probes."""
    final_seconds: float = 0.0
    """Seconds of a longer probe with the best point of each number of groups. 0: no such probe."""
    evaluate_every: str = "20 versions"
    """Interval of evaluations."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The best point for a number of groups."""

    phase: str
    """`cold start`, `steady state`, or `training` if the model was trained with it."""
    seconds: float
    """Virtual seconds before the choice, with those of probes."""
    groups: int
    lr: float
    momentum: float


@dataclass(frozen=True, slots=True)
class OptimizedRun:
    """The result of the optimizer."""

    seconds: float | None
    """Virtual seconds to the goal, with all probes. None: not reached."""
    overhead_seconds: float
    """Virtual seconds of probes, and of training that was repeated because it was after the last snapshot."""
    choices: Sequence[Choice]

    @property
    def reached(self) -> bool:
        """Whether the goal was reached."""
        return self.seconds is not None


def omnivore_optimizer(
    job: Job,
    fleet: Fleet,
    goal: Term,
    settings: OmnivoreSettings = OmnivoreSettings(),
    *,
    max_seconds: float,
    seed: int = 0,
) -> OptimizedRun:
    """Train the job on a simulated fleet with Omnivore's optimizer, with real gradients.

    Cold start: for 1, 2, 4, ... groups, probes from the initial weights choose the learning rate and momentum. Groups
    are doubled until updates are no longer 10 % faster. The model is then trained with the choice of lowest loss.

    Steady state: starting with the most groups, probes from the last snapshot choose again. While the best momentum is
    0, groups are halved. The model is trained, and so on. A search in which all points diverge counts as momentum 0.

    The machines' times in a probe are those of the run at the same number of seconds of training. Unlike the paper,
    the velocity has no learning rate in it. If training diverges, it is repeated with a tenth of the rate.

    Args:
        job: The job.
        fleet: The fleet.
        goal: A metric compared with a number. A probe that reaches it ends the run.
        settings: Settings of the optimizer.
        max_seconds: Virtual seconds until the run ends without the goal.
        seed: Random seed.
    """
    with ExitStack() as closing:
        closing.enter_context(preserve_random_state())
        search = _Search(job, fleet, goal, settings, max_seconds, seed, closing)
        best = search.cold_start()
        if best is not None:
            search.steady_state(*best)
        return OptimizedRun(search.seconds, search.overhead, search.choices)


def worth_trying(lrs: Iterable[float], momenta: Iterable[float], last: Point | None) -> list[Point]:
    """Return the points of the grid that the skip rules leave, from the lowest rate and momentum.

    More staleness only lowers the best point, so a higher rate, or the same rate with a higher momentum, is skipped. A
    point with a lower rate and a lower momentum than the last choice is too slow.
    """
    points = [Point(lr, momentum) for lr in sorted(lrs) for momentum in sorted(momenta)]
    return points if last is None else [point for point in points if not _is_skipped(point, last)]


def _is_skipped(point: Point, last: Point) -> bool:
    is_higher = point.lr > last.lr or (point.lr == last.lr and point.momentum > last.momentum)
    return is_higher or (point.lr < last.lr and point.momentum < last.momentum)


def diverges_too(point: Point, diverged: Point | None) -> bool:
    """Return whether a point is skipped because this point with a rate and momentum at most as high diverged."""
    return diverged is not None and point.lr >= diverged.lr and point.momentum >= diverged.momentum


def chosen(losses: Mapping[Point, float], buffer: float) -> Point:
    """Return the point of lowest loss, or the highest above it with a loss below the lowest times `buffer`."""
    best = min(losses, key=losses.__getitem__)
    # Points compare by rate, then momentum.
    higher = [point for point, loss in losses.items() if point > best and loss < losses[best] * buffer]
    return max(higher, default=best)


def refined(momentum: float) -> list[float]:
    """Return the momenta around the best one, in steps of 0.1, from 0 to 0.9."""
    around = (round(momentum + step / 10, 10) for step in range(-2, 3))
    return [each for each in around if 0 <= each <= 0.9]


def fastest(update_seconds: Mapping[int, float], saturation: float) -> int:
    """Return the most groups before saturation, by the measured seconds per update of each number of groups."""
    found, limit = 1, inf
    for groups, seconds in sorted(update_seconds.items()):
        if seconds < limit:
            found, limit = groups, seconds / (1 + saturation)
    return found


@dataclass
class _Search:
    job: Job
    fleet: Fleet
    goal: Term
    settings: OmnivoreSettings
    max_seconds: float
    seed: int
    closing: ExitStack
    seconds: float | None = None
    """Virtual seconds to the goal, with all probes."""
    overhead: float = 0.0
    snapshot: Trial | None = None
    """Training up to the last snapshot."""
    choices: list[Choice] = field(default_factory=list)
    update_seconds: dict[int, float] = field(default_factory=dict)
    """Measured seconds per update, by the number of groups."""
    timelines: dict[int, Timeline] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bench = Bench(self.job, self.seed)

    @property
    def spent(self) -> float:
        """Virtual seconds so far."""
        return self.overhead + (self.snapshot.seconds if self.snapshot else 0.0)

    @property
    def is_over(self) -> bool:
        return self.seconds is not None or self.spent >= self.max_seconds - TINY

    def cold_start(self) -> tuple[int, Point] | None:
        """Return the best number of groups and its point, or None if all points diverge with one group."""
        how, last, limit = self.settings, None, inf
        found: dict[tuple[int, Point], float] = {}
        for groups in group_counts(len(names_in(self.fleet.machines))):
            lrs = how.lrs if last is None else (last.lr, last.lr / 10)
            momenta = (max(how.momenta),) if groups == 1 else how.momenta
            tuned = self._tune(groups, lrs, momenta, last, how.probe_seconds, how.buffer, limit)
            if tuned is None or self.is_over:
                break
            last, loss = tuned
            if how.final_seconds:
                loss = self._probe(groups, last, how.final_seconds)
            self._record("cold start", groups, last)
            found[groups, last] = loss
            limit = self.update_seconds[groups] / (1 + how.saturation)
        return min(found, key=found.__getitem__, default=None)

    def steady_state(self, groups: int, last: Point) -> None:
        """Train with this choice, and then search and train in turn until the run is over."""
        last = self._train(groups, last)
        groups = fastest(self.update_seconds, self.settings.saturation)
        while not self.is_over:
            groups, last = self._search_again(groups, last)
            if not self.is_over:
                last = self._train(groups, last)

    def _search_again(self, groups: int, last: Point) -> tuple[int, Point]:
        """Search from the snapshot, and halve the groups while the best momentum is 0."""
        how = self.settings
        while True:
            lrs = (last.lr, last.lr / 10)
            seconds = how.steady_probe_seconds
            tuned = self._tune(groups, lrs, how.momenta, last, seconds, how.steady_buffer)
            best = tuned[0] if tuned else Point(last.lr / 10, 0.0)
            self._record("steady state", groups, best)
            if self.is_over or best.momentum > 0 or groups == 1:
                return groups, best
            groups, last = groups // 2, Point(best.lr, MOMENTUM_AFTER_HALVING)

    def _train(self, groups: int, point: Point) -> Point:
        """Train for a phase. Return the last choice of the next search."""
        how, before = self.settings, self.snapshot
        self._record("training", groups, point)
        length = min(how.training_seconds, self.max_seconds - self.spent)
        kept = length * how.snapshot_every * int(1 / how.snapshot_every + 1e-9)
        trial = self._follow(groups, point, kept, before)
        if trial.reached is None and not trial.diverged:
            self._follow(groups, point, length - kept, trial).close()
        if self.seconds is not None:
            trial.close()
        elif trial.diverged:
            trial.close()
            self.overhead += length
            return Point(point.lr / 10, point.momentum)
        else:
            self.snapshot = trial
            self.overhead += trial.start + length - trial.seconds
            if before is not None:
                before.close()
        return point

    def _tune(
        self,
        groups: int,
        lrs: Iterable[float],
        momenta: Iterable[float],
        last: Point | None,
        seconds: float,
        buffer: float,
        limit: float = inf,
    ) -> tuple[Point, float] | None:
        """Return the best point of the grid and its loss. None: updates take longer than `limit`, or all diverge."""
        losses = self._grid(groups, worth_trying(lrs, momenta, last), seconds, limit)
        if not losses:
            return None
        best = chosen(losses, buffer)
        if not self.settings.refine_seconds:
            return best, losses[best]
        finer = worth_trying([best.lr], refined(best.momentum), last)
        losses = self._grid(groups, finer, self.settings.refine_seconds, inf) or losses
        best = chosen(losses, buffer)
        return best, losses[best]

    def _grid(self, groups: int, points: Sequence[Point], seconds: float, limit: float) -> dict[Point, float]:
        """Return the losses of the points that did not diverge. Empty: updates take longer than `limit`."""
        losses, diverged = dict[Point, float](), None
        for point in points:
            if self.is_over:
                break
            if diverges_too(point, diverged):
                continue
            loss = self._probe(groups, point, seconds)
            if self.update_seconds[groups] > limit:
                return {}
            if loss == inf:
                diverged = point
            else:
                losses[point] = loss
        return losses

    def _probe(self, groups: int, point: Point, seconds: float) -> float:
        """Return the mean of the last training losses of a probe from the snapshot. Infinity: it diverged."""
        trial = self._follow(groups, point, seconds, self.snapshot)
        merges = [(at, loss) for at, loss in trial.losses if at > trial.start]
        self.update_seconds.setdefault(groups, _seconds_per_update([at for at, _ in merges], seconds))
        latest = [loss for _, loss in merges[-LAST_LOSSES:]]
        score = inf if trial.diverged or not latest else sum(latest) / len(latest)
        self.overhead += 0.0 if self.seconds is not None else seconds
        trial.close()
        return score

    def _follow(self, groups: int, point: Point, seconds: float, after: Trial | None) -> Trial:
        """Return a trial after this number of seconds. Note the time if it reaches the goal."""
        usual = self.job.optimizer
        decay = usual.weight_decay if isinstance(usual, SGD) else 0.0
        optimizer = SGD(point.lr, point.momentum, weight_decay=decay)
        trial = Trial(self.bench, self._timeline(groups), optimizer, self.goal, after=after)
        trial.advance(trial.start + seconds)
        if trial.reached is not None:
            since = self.snapshot.seconds if self.snapshot else 0.0
            self.seconds = self.spent + trial.reached.seconds - since
        return trial

    def _record(self, phase: str, groups: int, point: Point) -> None:
        self.choices.append(Choice(phase, self.spent, groups, point.lr, point.momentum))

    def _timeline(self, groups: int) -> Timeline:
        if groups not in self.timelines:
            config = RunConfig.of({"seed": self.seed, "evaluate_every": self.settings.evaluate_every})
            timeline = Timeline.of(self.job, Groups(Synchronous(), groups=groups), self.fleet, config)
            self.closing.callback(timeline.close)
            self.timelines[groups] = timeline
        return self.timelines[groups]


def _seconds_per_update(times: Sequence[float], seconds: float) -> float:
    """Return the mean seconds per update in the second half of a probe, as in the paper."""
    latest = times[len(times) // 2 :]
    if len(latest) < 2:
        return seconds / max(1, len(times))
    return (latest[-1] - latest[0]) / (len(latest) - 1)
