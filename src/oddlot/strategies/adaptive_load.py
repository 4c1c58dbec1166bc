"""Rounds that adapt the number of updates and the samples per task as the error falls."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, log
from typing import Annotated

from oddlot.core.commands import Command
from oddlot.core.events import Event, RoundTimesFitted
from oddlot.core.strategy import STATE, Strategy, Traits, View
from oddlot.core.support.errors import UsageError
from oddlot.core.support.validation import AtLeastOne, FromZeroBelowOne, Must, check_settings
from oddlot.core.tasks import UpdateId
from oddlot.strategies.support import stage_switching
from oddlot.strategies.support.fastest_rounds import check_enough, fastest
from oddlot.strategies.support.noise_test import Pflug
from oddlot.strategies.support.round_planning import RoundKind, Stage, spaced, stages

Row = tuple[int, int, float]
OTHER = 0.1
"""Relative change of the number of workers that counts as a new fleet, and largest share of the time for measuring it.
"""
SHORTER = 1 / 4
"""Rounds with n times fewer samples than a batch are worth it if they are n ** SHORTER times shorter."""
TIMEOUT_FACTOR = 4.0
"""Task timeout in units of the longest mean time of a round that waits for all workers. Measured times of each worker
cannot set it: they come only from updates that were among the first."""


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


TABLE = Must("rows of (k, samples, mean seconds), all above 0", _is_table)
LOADS = Must("whole numbers of samples, each at least 1", _are_loads)


@dataclass
class AdaptiveLoad(Strategy):
    """Apply the mean of the first k updates of each round, and adapt k and the samples per task as the error falls.

    The other tasks of a round are cancelled. Use it if you don't know your stragglers.

    Training is a sequence of stages. A stage is a sequence of rounds with the same k and samples per task. Early stages
    have short rounds with few samples, which reduce a large error fastest. Later stages have more samples per round,
    which a small error needs. `switch` decides when the next stage begins.

    The first stage has rounds of the job's batch size, for which its learning rate was chosen. While gradients agree,
    noise is small at this learning rate: each stage then has smaller and shorter rounds, until a stage ends for the
    first time. This needs `switch = "gradients"`. Set `least` to start with rounds of another size.

    The stages are planned from the mean times of rounds (`oddlot.strategies.support.round_planning`). Pass the times as
    `table`. Without it, they are measured: the first rounds wait for every worker, and so do occasional later ones.

    Paper: Egger, Kas Hanna, Bitar, "Fast and Straggler-Tolerant Distributed SGD with Reduced Computation Load" (2023),
    for the idea. The stages are derived independently, and may differ from the paper's.
    """

    table: Annotated[tuple[Row, ...], TABLE] = ()
    """Rounds to choose from: rows of (k, samples per task, mean seconds of a round), for example from
    `oddlot.timing.order_statistics.rounds_of`. Empty: times are measured."""
    switch: stage_switching.Switch = field(default_factory=stage_switching.ByGradients)
    """Criterion for ending a stage: `gradients`, `plateau` or `error`."""
    loads: Annotated[tuple[int, ...], LOADS] = ()
    """Samples per task to choose from if times are measured. Empty: several numbers from 1 to the job's batch size."""
    least: AtLeastOne | None = None
    """Smallest number of samples of a round. Choose the learning rate for it. If all rounds are smaller, the largest is
    used. None: the job's batch size at first, and fewer while gradients agree."""
    gain: Annotated[float, Must("at least 1 and finite", lambda gain: 1 <= gain < inf)] = 1.5
    """Minimum growth of a round's samples from one stage to the next, as a factor. The last stage may grow less. Stages
    are skipped if a stage that is larger by this factor takes about as long. Not used with `switch = "error"`."""
    measuring: FromZeroBelowOne = 0.02
    """Share of the time for measurements after the first one: rounds that wait for every worker. It is at least 0.1
    while the number of workers differs by 10 % or more from that of the last measurement. 0: times are measured only
    once."""
    round: dict[UpdateId, int] = field(default_factory=dict)
    """State: samples of each update of this round."""
    samples: int = field(default=0, metadata=STATE)
    """State: samples per task of this round. 0: no round has started."""
    whole: bool = field(default=False, metadata=STATE)
    """State: whether this round waits for every worker and is measured."""
    began: float = field(default=0.0, metadata=STATE)
    """State: start of this round, in seconds."""
    measured: tuple[float, float] = field(default=(0.0, 0.0), metadata=STATE)
    """State: end and duration of the last measured round, in seconds."""
    longest: float = field(default=0.0, metadata=STATE)
    """State: mean duration of a round that waits for every worker, at the slowest load, in seconds. 0: not measured."""
    path: list[Row] = field(default_factory=list)
    """State: k, samples, and lower end of the error range of each stage, in units of rounds of one sample."""
    stage: int = field(default=0, metadata=STATE)
    """State: index of the current stage."""
    size: int = field(default=0, metadata=STATE)
    """State: samples of a round of the latest stage."""
    risen: bool = field(default=False, metadata=STATE)
    """State: whether a stage has ended. Rounds do not become smaller after that."""
    fleet: int = field(default=0, metadata=STATE)
    """State: number of workers at the last measurement."""

    def __post_init__(self) -> None:
        check_settings(self)
        most = max((k * samples for k, samples, _ in self.table), default=inf)
        if self.table and self.loads:
            message = "loads has no effect with table, which has its own loads: set only one of them"
            raise UsageError(message, "loads_beside_table", "loads")
        if self.least is not None and self.least > most:
            message = f"least = {self.least}: the largest round of table has {most} samples"
            raise UsageError(message, "least_above_all_rounds", "least", least=self.least)

    def validate(self, workers: int, metrics: Collection[str]) -> None:
        """Raise UsageError if there are fewer than k workers, or if the metric of `switch` is not evaluated."""
        check_enough(max((k for k, _, _ in self.table), default=1), workers, "table")
        stage_switching.check_metrics(self.switch, metrics)

    def traits(self, batch_size: int) -> Traits:
        """Return the strategy's traits."""
        loads = self._measured_loads(batch_size)
        return Traits(
            reads_gradients=isinstance(self.switch, stage_switching.ByGradients),
            measured_loads=loads,
            task_samples=max(loads or (samples for _, samples, _ in self.table)),
            task_setting="loads" if loads else "table",
            step_samples=self.least or batch_size,
        )

    def _measured_loads(self, batch: int) -> tuple[int, ...]:
        return () if self.table else self.loads or _loads_up_to(batch)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect updates, close the round at the k-th, and check whether the stage has ended."""
        self._advance(event, view.batch)
        next_whole = not self.path or self._is_due(view)
        then = max(self._measured_loads(view.batch)) if next_whole else self.path[self.stage][1]
        if not self.samples:
            self.samples, self.whole = then, next_whole
        k = None if self.whole else self.path[self.stage][0]
        may_change = self.stage + 1 < len(self.path) or self._may_fall
        measure = stage_switching.rounds_measured(self.switch) if may_change else 0
        timeout = TIMEOUT_FACTOR * self.longest or None
        if (yield from fastest(event, view, self.round, k, self.samples, measure, then, timeout)):
            if self.whole:
                self.measured = view.now, view.now - self.began
            if next_whole:
                self.fleet = len(view.nodes)
            self.samples, self.whole, self.began = then, next_whole, view.now

    def _advance(self, event: Event, batch: int) -> None:
        """Move to the next or previous stage if this event requires it."""
        if isinstance(event, RoundTimesFitted):
            self.whole = self.whole and bool(self.path)  # the first measurement is complete
            self.longest = max(seconds for _, _, seconds in event.rounds)
            self._plan(event.rounds, batch)
        elif self.table and not self.path:
            self._plan(self.table, batch)
        elif self.path:
            ends = [until for _, _, until in self.path[:-1]]
            stage = min(self.switch.stage(event, self.stage, ends), len(ends))
            self.risen = self.risen or stage > self.stage
            if self._may_fall and isinstance(self.switch, stage_switching.ByGradients) and self.switch.agree:
                stage, self.switch.pflug = self.stage - 1, Pflug()
            if stage != self.stage:
                self.stage, self.size = stage, _samples(self.path[stage])

    @property
    def _may_fall(self) -> bool:
        """Return whether smaller rounds may follow."""
        return self.stage > 0 and not self.risen

    def _is_due(self, view: View) -> bool:
        """Return whether to measure the next round: the last measurement is old, or the fleet has changed."""
        if not self.measuring or self.table or self.whole:
            return False
        is_another = abs(len(view.nodes) - self.fleet) >= OTHER * self.fleet
        share = max(OTHER, self.measuring) if is_another else self.measuring
        ended, took = self.measured
        return view.now >= ended + took / share

    def _plan(self, rows: Sequence[Row], batch: int) -> None:
        """Plan the stages for these rounds, and continue at the stage with the size nearest to the current size."""
        least = min(self.least or batch, max(map(_samples, rows)))
        choices = [RoundKind(*row) for row in rows]
        found = self._stages([one for one in choices if one.size >= least])
        first, smaller = found[0].choice, list[Stage]()
        if self.least is None and isinstance(self.switch, stage_switching.ByGradients):
            smaller = self._stages([one for one in choices if self._is_smaller(one, first)])
        before = self.path[self.stage][:2] if self.path else None
        self.path = [(one.choice.k, one.choice.samples, one.until) for one in (*smaller, *found)]
        self.size = self.size or first.size
        begin = len(smaller) if self.size >= least else 0
        near = range(begin, len(self.path))
        self.stage = min(near, key=lambda at: abs(log(_samples(self.path[at]) / self.size)))
        if isinstance(self.switch, stage_switching.ByGradients) and before != self.path[self.stage][:2]:
            self.switch.pflug = Pflug()

    def _stages(self, choices: Sequence[RoundKind]) -> list[Stage]:
        """Return the stages of these rounds."""
        if not choices:
            return []
        found = stages(choices)
        return found if isinstance(self.switch, stage_switching.ByError) else spaced(found, self.gain)

    def _is_smaller(self, one: RoundKind, first: RoundKind) -> bool:
        """Return whether these rounds are smaller than the rounds of the first stage, and clearly shorter."""
        times = first.size / one.size
        return times >= self.gain and first.seconds >= one.seconds * times**SHORTER


def _samples(row: Row) -> int:
    """Return the samples of a round."""
    return row[0] * row[1]


def _loads_up_to(batch: int) -> tuple[int, ...]:
    """Return about two loads per doubling, from one sample to the batch."""
    halvings = range(2 * batch.bit_length())
    return tuple(sorted({max(1, round(batch / 2 ** (place / 2))) for place in halvings}))
