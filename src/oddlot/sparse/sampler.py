"""The interface of samplers. Samplers choose the rows that are computed in addition to the labels."""

from dataclasses import dataclass
from math import exp, log
from typing import Any, Protocol

from numpy.typing import NDArray

from oddlot.sparse.active_set import ActiveSet
from oddlot.sparse.errors import coded, invalid_value
from oddlot.sparse.threads import Crew
from oddlot.sparse.validation import check_number, check_whole

FIRST_STEPS, SLOWER = 50, 0.2
MANY, TWICE = 100_000, log(2)
"""Minimum number of rows to double the interval between rebuilds each time, because rebuilding is expensive."""
METHODS = ("most", "prepare", "choose", "forget")
STILL = 100.0
"""Largest exponent of the intervals; with it, there is no third rebuild."""


class Sampler(Protocol):
    """Chooses rows for the examples of a batch. A layer sets the attribute `layer` of its sampler."""

    def most(self, out_features: int) -> int:
        """Return the largest number of rows for an example."""

    def prepare(self, crew: Crew, weight: NDArray[Any], bias: NDArray[Any], step: int, seed: int) -> None:
        """Prepare for a batch: rebuild the index if it is outdated. `step` counts training batches up to this batch."""

    def choose(self, crew: Crew, hidden: NDArray[Any], active: ActiveSet, seed: int) -> None:
        """Add rows to every example: first those found, then those drawn randomly.

        Each row occurs once for an example, from `active.rows[active.starts[e] + active.counts[e]]` on. Increase
        `active.counts`, set `active.sure` to the number of labels and found rows, and `active.log_weights` of the other
        slots to the logarithm of the number of rows that each represents. Evaluation batches (not `active.learns`) must
        not change the sampler.
        """

    def forget(self) -> None:
        """Discard the index, because the rows were replaced."""


def check_sampler(sampler: object, or_none: bool = True) -> None:
    """Raise ValueError unless the value is a sampler or, with `or_none`, None."""
    if sampler is None and or_none:
        return
    lacks = [name for name in METHODS if not callable(getattr(sampler, name, None))]
    if isinstance(sampler, type) or lacks:
        message = f" (it has no {', '.join(lacks)})" if 0 < len(lacks) < len(METHODS) else ""
        error = ValueError(
            f"sampler = {sampler!r} must be a sampler such as Clusters() or Uniform(300){message}"
        )
        raise coded(error, "not_a_sampler", given=sampler, lacks=lacks)


def check_refresh(refresh: object) -> None:
    """Raise ValueError unless the value is a Refresh."""
    if not isinstance(refresh, Refresh):
        raise invalid_value("refresh", refresh, "a Refresh, such as Refresh(every=50)")


@dataclass
class Refresh:
    """When a sampler rebuilds its index of the rows.

    The interval after rebuild i is `every * exp(slower * i)` steps, because weights change less and less (Chen et al.,
    "SLIDE", MLSys 2020, section 4.2).
    """

    every: int | None = None
    """Steps to the first rebuild. Default: 50."""
    slower: float | None = None
    """Growth rate of the interval. Default: 0 if `every` is given; else 0.2, or ln 2 with 100,000 rows or more."""
    times: int = 0
    """State: number of rebuilds."""
    next: float = 0.0
    """State: step of the next rebuild."""

    def __post_init__(self) -> None:
        if self.every is not None:
            check_whole(every=self.every)
        if self.slower is not None:
            check_number(0, STILL, slower=self.slower)

    def due(self, step: int, rows: int) -> bool:
        """Return whether a rebuild is due at this step. If so, count it as done."""
        if step < self.next:
            return False
        slower = self.slower
        if slower is None:
            slower = 0.0 if self.every else TWICE if rows >= MANY else SLOWER
        self.next = step + (self.every or FIRST_STEPS) * exp(min(STILL, slower * self.times))
        self.times += 1
        return True

    def forget(self) -> None:
        """Reset the state: rebuild at the next step."""
        self.next, self.times = 0.0, 0
