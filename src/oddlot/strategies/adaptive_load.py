"""Rounds that adapt how many workers they wait for and how much each of them computes, as the error falls."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, log
from typing import Annotated

from oddlot.core.commands import Command
from oddlot.core.errors import UsageError
from oddlot.core.events import Event, Fitted
from oddlot.core.strategy import STATE, Strategy, Traits, View
from oddlot.core.tasks import UpdateId
from oddlot.core.validation import AtLeastOne, FromZeroBelowOne, Must, check_settings
from oddlot.strategies.support.fastest_rounds import check_enough, fastest
from oddlot.strategies.support.noise_test import Pflug
from oddlot.strategies.support.round_planning import Choice, spaced, stages
from oddlot.strategies.support.stage_switching import (
    ByError,
    ByGradients,
    Switch,
    check_metrics,
    rounds_measured,
)

Row = tuple[int, int, float]
OTHER = 0.1
"""the share by which the number of workers differs in another fleet, and of the time in which one is measured"""
PATIENCE = 4.0
"""so many times what a round of everybody takes, at the load with the longest, a lease lasts: what is known of each
worker is of answers that were among the first"""


def _is_table(rows: object) -> bool:
    return isinstance(rows, tuple | list) and all(
        isinstance(row, tuple | list)
        and len(row) == 3
        and all(type(count) is int and count >= 1 for count in row[:2])
        and isinstance(row[2], int | float)
        and 0 < row[2] < inf
        for row in rows
    )


def _are_loads(loads: object) -> bool:
    return isinstance(loads, tuple | list) and all(type(one) is int and one >= 1 for one in loads)


TABLE = Must("rows of k, samples and mean seconds, all above 0", _is_table)
LOADS = Must("whole numbers of samples, each at least 1", _are_loads)


@dataclass
class AdaptiveLoad(Strategy):
    """Step along the mean of the first k results of each round, each of so many samples; rounds grow as the error
    falls. The other tasks are cancelled.

    At a large error small batches that are soon there bring it down the fastest; at a small one only large batches
    bring it down at all. Which k and how many samples are the best at which error follows from the mean seconds of
    rounds (`oddlot.strategies.support.round_planning`). They are given, or measured: the first rounds wait for
    everybody, and later some more do.

    Paper: Egger, Kas Hanna, Bitar, "Fast and Straggler-Tolerant Distributed SGD with Reduced Computation Load" (2023),
    whose idea it is; the stages are derived here (`oddlot.strategies.support.round_planning`), and may not be the
    paper's.
    """

    table: Annotated[tuple[Row, ...], TABLE] = ()
    """the rounds to choose from: k, samples for each worker, mean seconds (see
    `oddlot.timing.order_statistics.rounds_of`); empty: measured"""
    switch: Switch = field(default_factory=ByGradients)
    """what ends a stage"""
    loads: Annotated[tuple[int, ...], LOADS] = ()
    """samples that a worker may be given, where rounds are measured; empty: some, from 1 to the job's batch"""
    least: AtLeastOne | None = None
    """samples of a round, at least: the learning rate has to suit them. Smaller rounds are not taken, also of the
    table; where all are smaller, only the largest. None: the job's batch"""
    gain: Annotated[float, Must("at least 1 and finite", lambda gain: 1 <= gain < inf)] = 1.5
    """rounds grow by at least so much from stage to stage, but for the last one; stages whose rounds are hardly shorter
    than those of a stage so much larger are left out. Not where the error ends stages"""
    measuring: FromZeroBelowOne = 0.02
    """share of the time for rounds that wait for everybody to be measured, after the first ones, and up to a tenth of
    it where the fleet becomes another one; 0: none"""
    round: dict[UpdateId, int] = field(default_factory=dict)
    """state: the samples of every update of this round"""
    samples: int = field(default=0, metadata=STATE)
    """state: that each worker is given in it; 0: there is none yet"""
    whole: bool = field(default=False, metadata=STATE)
    """state: it waits for everybody, and is measured"""
    began: float = field(default=0.0, metadata=STATE)
    """state: when it did, in seconds"""
    measured: tuple[float, float] = field(default=(0.0, 0.0), metadata=STATE)
    """state: when the last one that waited for everybody ended, and how long it took, in seconds"""
    longest: float = field(default=0.0, metadata=STATE)
    """state: seconds that a round of everybody takes, on average, at the load with the longest; 0: not measured yet"""
    path: list[Row] = field(default_factory=list)
    """state: the stages' k, samples, and the error down to which each is the best, in units of rounds of one sample"""
    stage: int = field(default=0, metadata=STATE)
    """state: which of them it is"""
    size: int = field(default=0, metadata=STATE)
    """state: the samples of a round to which stages have led"""
    fleet: int = field(default=0, metadata=STATE)
    """state: how many workers there were when rounds were measured last"""

    def __post_init__(self) -> None:
        check_settings(self)
        most = max((k * samples for k, samples, _ in self.table), default=inf)
        if self.table and self.loads:
            told = "loads are for rounds that are measured: the table has its own"
            raise UsageError(told, "loads_beside_table", "loads")
        if self.least is not None and self.least > most:
            told = f"least = {self.least}: no round has so many samples"
            raise UsageError(told, "least_above_all_rounds", "least", least=self.least)

    def validate(self, workers: int, metrics: Collection[str]) -> None:
        """UsageError: there will never be k workers, or what ends stages is not evaluated."""
        check_enough(max((k for k, _, _ in self.table), default=1), workers, "table")
        check_metrics(self.switch, metrics)

    def traits(self, batch_size: int) -> Traits:
        """Return what must be known before a run."""
        loads = self._measured_loads(batch_size)
        return Traits(
            reads_gradients=isinstance(self.switch, ByGradients),
            measured_loads=loads,
            task_samples=max(loads or (samples for _, samples, _ in self.table)),
            task_setting="loads" if loads else "table",
            step_samples=self.least or batch_size,
        )

    def _measured_loads(self, batch: int) -> tuple[int, ...]:
        return () if self.table else self.loads or _loads_up_to(batch)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect a round; close it at the k-th result; see whether the stage has ended."""
        self._advance(event, view.batch)
        next_whole = not self.path or self._is_due(view)
        then = max(self._measured_loads(view.batch)) if next_whole else self.path[self.stage][1]
        if not self.samples:
            self.samples, self.whole = then, next_whole
        k = None if self.whole else self.path[self.stage][0]
        follows = self.stage + 1 < len(self.path)
        measure = rounds_measured(self.switch) if follows else 0
        patience = PATIENCE * self.longest or None
        if (yield from fastest(event, view, self.round, k, self.samples, measure, then, patience)):
            if self.whole:
                self.measured = view.now, view.now - self.began
            if next_whole:
                self.fleet = len(view.nodes)
            self.samples, self.whole, self.began = then, next_whole, view.now

    def _advance(self, event: Event, batch: int) -> None:
        """To the stage that it is after this event."""
        if isinstance(event, Fitted):
            self.whole = self.whole and bool(self.path)  # nothing was known: enough was measured just now
            self.longest = max(seconds for _, _, seconds in event.rounds)
            self._plan(event.rounds, batch)
        elif self.table and not self.path:
            self._plan(self.table, batch)
        elif self.path:
            ends = [until for _, _, until in self.path[:-1]]
            stage = min(self.switch.stage(event, self.stage, ends), len(ends))
            if stage > self.stage:
                self.stage, self.size = stage, _samples(self.path[stage])

    def _is_due(self, view: View) -> bool:
        """The round after this one is to be measured: there was none for long, or the fleet is another one."""
        if not self.measuring or self.table or self.whole:
            return False
        is_another = abs(len(view.nodes) - self.fleet) >= OTHER * self.fleet
        share = max(OTHER, self.measuring) if is_another else self.measuring
        ended, took = self.measured
        return view.now >= ended + took / share

    def _plan(self, rows: Sequence[Row], batch: int) -> None:
        """The stages of these rounds; it is the one whose size is the nearest to what was reached."""
        least = min(self.least or batch, max(map(_samples, rows)))
        found = stages(Choice(*row) for row in rows if _samples(row) >= least)
        if not isinstance(self.switch, ByError):
            found = spaced(found, self.gain)
        before = self.path[self.stage][:2] if self.path else None
        self.path = [(stage.choice.k, stage.choice.samples, stage.until) for stage in found]
        self.size = self.size or _samples(self.path[0])
        self.stage = min(range(len(self.path)), key=lambda at: abs(log(_samples(self.path[at]) / self.size)))
        if isinstance(self.switch, ByGradients) and before != self.path[self.stage][:2]:
            self.switch.pflug = Pflug()


def _samples(row: Row) -> int:
    """Of a round."""
    return row[0] * row[1]


def _loads_up_to(batch: int) -> tuple[int, ...]:
    """About two for each doubling, down to one sample."""
    halvings = range(2 * batch.bit_length())
    return tuple(sorted({max(1, round(batch / 2 ** (place / 2))) for place in halvings}))
