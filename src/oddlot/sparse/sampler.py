"""What a sampler is: it chooses the rows of the output layer that are computed for an example, beside its labels."""

from dataclasses import dataclass
from math import exp, log
from typing import Any, Protocol

from numpy.typing import NDArray

from oddlot.sparse.active_set import Active
from oddlot.sparse.errors import coded, invalid_value
from oddlot.sparse.threads import Crew
from oddlot.sparse.validation import check_number, check_whole

FIRST_STEPS, SLOWER = 50, 0.2
MANY, TWICE = 100_000, log(2)
"""rows from which on making anew costs so much that each time comes after twice as many steps"""
METHODS = ("most", "prepare", "choose", "forget")
STILL = 100.0
"""with it, the third time never comes"""


class Sampler(Protocol):
    """Chooses rows for the examples of a batch. A layer notes on it, as the attribute `layer`, that it has it."""

    def most(self, out_features: int) -> int:
        """How many for an example, at most."""

    def prepare(self, crew: Crew, weight: NDArray[Any], bias: NDArray[Any], step: int, seed: int) -> None:
        """Before a batch: what it knows about the rows may be too old. `step` counts those that were learnt from, the
        batch among them if it is one."""

    def choose(self, crew: Crew, hidden: NDArray[Any], active: Active, seed: int) -> None:
        """Add rows to every example: first those that are sure to be there, then those by chance.

        A row once for an example, from `active.rows[active.starts[e] + active.counts[e]]` on; `active.counts` grows,
        `active.sure` becomes how many are sure, labels among them, and `active.log_weights` of the others' slots tells
        for how many rows each stands. A batch of which nobody learns (`active.learns`) leaves what is known as it is.
        """

    def forget(self) -> None:
        """The rows are others now."""


def check_sampler(sampler: object, or_none: bool = True) -> None:
    """ValueError: it is neither a sampler nor None, which stands for the default."""
    if sampler is None and or_none:
        return
    lacks = [name for name in METHODS if not callable(getattr(sampler, name, None))]
    if isinstance(sampler, type) or lacks:
        told = f" (it has no {', '.join(lacks)})" if 0 < len(lacks) < len(METHODS) else ""
        error = ValueError(f"sampler = {sampler!r} is no sampler{told}: such as Clusters() or Uniform(300)")
        raise coded(error, "not_a_sampler", given=sampler, lacks=lacks)


def check_refresh(refresh: object) -> None:
    """ValueError: it is none."""
    if not isinstance(refresh, Refresh):
        raise invalid_value("refresh", refresh, "one: such as Refresh(every=50)")


@dataclass
class Refresh:
    """When what is known about the rows is made anew.

    After `every` steps at first; with `slower`, the i-th time after `every * exp(slower * i)` more: weights change
    less and less (Chen et al., "SLIDE", MLSys 2020, section 4.2).
    """

    every: int | None = None
    """None: 50 steps"""
    slower: float | None = None
    """None: 0 where `every` is given; else 0.2, or ln 2 with 100,000 rows and more, as what it costs grows with them"""
    times: int = 0
    next: float = 0.0

    def __post_init__(self) -> None:
        if self.every is not None:
            check_whole(every=self.every)
        if self.slower is not None:
            check_number(0, STILL, slower=self.slower)

    def due(self, step: int, rows: int) -> bool:
        """Whether it is time for so many rows; if so, it is taken as done."""
        if step < self.next:
            return False
        slower = self.slower
        if slower is None:
            slower = 0.0 if self.every else TWICE if rows >= MANY else SLOWER
        self.next = step + (self.every or FIRST_STEPS) * exp(min(STILL, slower * self.times))
        self.times += 1
        return True

    def forget(self) -> None:
        """It is time at the next step, as at first."""
        self.next, self.times = 0.0, 0
