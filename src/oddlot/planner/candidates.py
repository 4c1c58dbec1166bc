"""Candidates of a plan: a strategy with its groups, a batch size, a codec, a learning rate and a momentum."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from oddlot.core.optimizers import SGD, Optimizer, ParameterGroups
from oddlot.core.strategy import Strategy
from oddlot.core.strategy_wrapper import layers
from oddlot.core.support.errors import UsageError
from oddlot.core.support.text import counted
from oddlot.machines.market import Fleet, all_machines
from oddlot.planner.hardware_efficiency import update_time
from oddlot.planner.statistical_efficiency import implicit_momentum
from oddlot.strategies.groups import Groups
from oddlot.strategies.synchronous import Synchronous
from oddlot.train.job import Job
from oddlot.wire.codec import Codec
from oddlot.wire.registry import codec_name

SATURATED = 0.95
"""Time per sample, relative to fewer groups, above which more groups do not pay for their staleness."""
MOST_CANDIDATES = 8
"""Largest number of candidates that a search starts with."""
MOST_GROUP_COUNTS = 3
"""Number of group counts among them, the largest ones."""
DIGITS = 4
"""Significant digits of learning rates."""
LEAST_MOMENTUM = -0.3
"""Smallest momentum that the planner sets."""
USUAL_MOMENTUM = 0.9
"""Momentum of one group if the job has none."""


@dataclass(frozen=True, eq=False)  # strategies cannot be hashed
class Setup:
    """The part of a candidate that decides about the time and the cost of each merge."""

    strategy: Strategy
    batch_size: int
    codec: Codec | None = None

    @property
    def groups(self) -> int:
        """Number of groups. 1 for a strategy without groups."""
        return self.strategy.groups if isinstance(self.strategy, Groups) else 1

    def __str__(self) -> str:
        inner = layers(self.strategy)[-1]
        parts = [counted(self.groups, "group")] if isinstance(self.strategy, Groups) else []
        parts += [] if parts and isinstance(inner, Synchronous) else [type(inner).__name__]
        parts.append(f"batch {self.batch_size}")
        return ", ".join([*parts, codec_name(self.codec)] if self.codec is not None else parts)

    def is_like(self, other: "Setup") -> bool:
        """Return whether two setups differ at most in the number of groups."""
        one, two = (
            replace(each.strategy, groups=1) if isinstance(each.strategy, Groups) else each.strategy
            for each in (self, other)
        )
        return (one, self.batch_size, self.codec) == (two, other.batch_size, other.codec)


@dataclass(frozen=True)
class Candidate:
    """A setup and an optimizer."""

    setup: Setup
    optimizer: Optimizer

    @property
    def reach(self) -> float:
        """Return lr / (1 - momentum): the sum of the steps that a gradient causes."""
        return rate_of(self.optimizer) / (1 - momentum_of(self.optimizer))

    def slower(self) -> "Candidate":
        """Return the candidate with half the learning rate."""
        return replace(self, optimizer=scaled(self.optimizer, 0.5))

    def job(self, job: Job) -> Job:
        """Return the job with the batch size and the optimizer of this candidate."""
        return replace(job, batch_size=self.setup.batch_size, optimizer=self.optimizer)

    def __str__(self) -> str:
        momentum = f", momentum {self.optimizer.momentum:g}" if isinstance(self.optimizer, SGD) else ""
        return f"{self.setup}, lr {rate_of(self.optimizer):.3g}{momentum}"


def rate_of(optimizer: Optimizer) -> float:
    """Return the learning rate."""
    return float(cast(Any, optimizer).lr)


def momentum_of(optimizer: Optimizer) -> float:
    """Return the momentum of SGD; 0 for other optimizers."""
    return optimizer.momentum if isinstance(optimizer, SGD) else 0.0


def scaled(optimizer: Optimizer, factor: float) -> Optimizer:
    """Return the optimizer with `factor` times the learning rate, rounded.

    Raise UsageError if it has parameter groups.
    """
    if isinstance(optimizer, ParameterGroups) or callable(optimizer):
        message = (
            "a plan needs one learning rate: use Job(optimizer=oddlot.SGD(...)) or another oddlot.Optimizer"
        )
        raise UsageError(message, "optimizer_without_plan", "optimizer")
    changed: Optimizer = replace(cast(Any, optimizer), lr=rounded(factor * rate_of(optimizer)))
    return changed


def rounded(lr: float) -> float:
    """Return a learning rate with `DIGITS` significant digits. A plan file has the rate that was predicted with."""
    return float(f"{lr:.{DIGITS}g}")


def for_groups(optimizer: Optimizer, groups: int) -> Optimizer:
    """Return the optimizer for a number of groups.

    The staleness of g groups acts like an additional momentum of 1 - 1/g, so the momentum is lowered by as much, and
    lr / (1 - momentum) stays the same, except for rounding. Optimizers other than SGD are not changed.

    Source: Mitliagkas et al., "Asynchrony begets Momentum" (2016), theorem 6.
    """
    if not isinstance(optimizer, SGD):
        return optimizer
    usual = optimizer.momentum or USUAL_MOMENTUM
    momentum = usual if groups == 1 else max(LEAST_MOMENTUM, round(usual - implicit_momentum(groups), 2))
    lr = rounded(optimizer.lr * (1 - momentum) / (1 - optimizer.momentum))
    return replace(optimizer, lr=lr, momentum=momentum, nesterov=optimizer.nesterov and momentum > 0)


def for_one_group(optimizer: Optimizer, groups: int) -> Optimizer:
    """Return the optimizer that `for_groups` lowers to this momentum."""
    if not isinstance(optimizer, SGD):
        return optimizer
    momentum = min(USUAL_MOMENTUM, round(optimizer.momentum + implicit_momentum(groups), 2))
    lr = rounded(optimizer.lr * (1 - momentum) / (1 - optimizer.momentum))
    return replace(optimizer, lr=lr, momentum=momentum)


def group_counts(workers: int) -> list[int]:
    """Return 1, 2, 4, ... and the number of workers."""
    counts = [1]
    while 2 * counts[-1] < workers:
        counts.append(2 * counts[-1])
    return counts + [workers] * (workers > 1)


def in_groups(strategy: Strategy, counts: Iterable[int]) -> list[Strategy]:
    """Return a strategy in several numbers of groups, or alone if it has no rounds."""
    if not isinstance(strategy, Groups):
        if not strategy.traits(1).waits_for_all:
            return [strategy]
        strategy = Groups(strategy)
    return [replace(strategy, groups=count) for count in counts]


def seconds_per_sample(setup: Setup, fleet: Fleet, bytes_down: int, bytes_up: int) -> float | None:
    """Return the predicted seconds per merged sample while all machines run. None: the strategy has no model."""
    strategy = setup.strategy
    if not (isinstance(strategy, Groups) and isinstance(strategy.inner, Synchronous)):
        return None
    machines = list(all_machines(fleet.machines))
    time = update_time(machines, setup.groups, setup.batch_size, fleet.hub, bytes_down, bytes_up)
    return time.seconds / setup.batch_size


def saturated(times: dict[Setup, float]) -> dict[Setup, str]:
    """Return the setups that are hardly faster than one with fewer groups, with the reason.

    Args:
        times: Seconds per sample of each setup.

    Source: the saturation stop of Omnivore's optimizer (Hadjis et al., 2016).
    """
    found = dict[Setup, str]()
    for setup in sorted(times, key=lambda each: each.groups):
        fewer = [
            each for each in times if each.is_like(setup) and each.groups < setup.groups and each not in found
        ]
        best = min(fewer, key=times.__getitem__, default=None)
        if best is not None and times[setup] > SATURATED * times[best]:
            saved = max(0.0, 1 - times[setup] / times[best])
            found[setup] = f"saves {saved:.0%} of the time per sample of {best}, and is staler"
    return found


def first_candidates(kept: Sequence[Setup], job: Job) -> list[Candidate]:
    """Return the candidates that a search starts with.

    These are the largest group counts, at the job's lr / (1 - momentum) and at half of it: staleness may need smaller
    steps. For other batch sizes, codecs and strategies, it is the largest group count, at a rate in proportion to the
    batch size.
    """
    found, families = list[Candidate](), _families(kept)
    own = next((each for each in families if each[0].batch_size == job.batch_size), families[0])
    for setup in own[:MOST_GROUP_COUNTS]:
        whole = Candidate(setup, first_optimizer(setup, job))
        found += [whole, whole.slower()]
    for family in families:
        if family is not own:
            found.insert(2, Candidate(family[0], first_optimizer(family[0], job)))
    return found[:MOST_CANDIDATES]


def _families(kept: Iterable[Setup]) -> list[list[Setup]]:
    """Return the setups that differ only in the number of groups together, the largest number first."""
    families = list[list[Setup]]()
    for setup in sorted(kept, key=lambda each: -each.groups):
        alike = next((family for family in families if family[0].is_like(setup)), None)
        if alike is None:
            families.append([setup])
        else:
            alike.append(setup)
    return families


def first_optimizer(setup: Setup, job: Job) -> Optimizer:
    """Return the optimizer of a setup in a new search. Local steps are not stale, so theirs keeps its momentum."""
    if setup.strategy.traits(setup.batch_size).local_steps:
        return scaled(job.optimizer, setup.batch_size / job.batch_size)
    return scaled(for_groups(job.optimizer, setup.groups), setup.batch_size / job.batch_size)
