"""Rounds that wait for few workers at first, and for more workers as progress slows."""

from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter
from typing import Annotated

from oddlot.core.commands import Command
from oddlot.core.events import Event
from oddlot.core.strategy import STATE, Strategy, Traits, View
from oddlot.core.support.errors import UsageError
from oddlot.core.support.validation import AtLeastOne, Must, check_settings
from oddlot.core.tasks import UpdateId
from oddlot.strategies.support import stage_switching
from oddlot.strategies.support.fastest_rounds import check_enough, fastest


def _are_times(rows: object) -> bool:
    if not isinstance(rows, tuple | list) or not all(isinstance(row, tuple | list) for row in rows):
        return False
    if not all(len(row) == 2 and type(row[1]) is int and row[1] >= 1 for row in rows):
        return False
    seconds = [row[0] for row in rows]
    if not all(isinstance(one, int | float) and 0 <= one < inf for one in seconds):
        return False
    return seconds == sorted(seconds)


TIMES = Must("rows of (seconds, k), with seconds in ascending order and k at least 1", _are_times)


@dataclass
class AdaptiveK(Strategy):
    """Apply the mean of the first k updates of each round, and raise k when noise outweighs progress.

    The other tasks of a round are cancelled. Rounds with a small k are short, but their mean gradient is noisier: the
    error falls faster at first and ends higher.

    `switch` decides when k rises: by default, when summed gradients of consecutive windows point in opposite
    directions. The paper's algorithm 1 is `switch=ByGradients(window=1, threshold=10, burn_in=200)`. With `times`, k
    changes at fixed times, such as those of theorem 1:
    `oddlot.strategies.support.round_planning.switch_times` computes them from known constants.

    Paper: Kas Hanna et al., "Adaptive Distributed SGD for Fast Convergence in the Presence of Stragglers" (ICASSP
    2020), algorithm 1 and theorem 1.
    """

    k: AtLeastOne = 1
    """Number of updates that the first rounds wait for."""
    rise: AtLeastOne = 1
    """Increase of k each time that it rises."""
    most: AtLeastOne | None = None
    """Largest k. None: the number of workers."""
    switch: stage_switching.ByNoConstants = field(default_factory=stage_switching.ByGradients)
    """Criterion for raising k: `gradients` or `plateau`."""
    times: Annotated[tuple[tuple[float, int], ...], TIMES] = ()
    """Rows of (seconds since the start of the run, k from then on). They replace `switch`. Empty: `switch` decides."""
    samples: AtLeastOne | None = None
    """Samples per task. None: the job's batch size."""
    round: dict[UpdateId, int] = field(default_factory=dict)
    """State: samples of each update of this round."""
    rises: int = field(default=0, metadata=STATE)
    """State: number of times that k has risen."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.most is not None and self.most < self.k:
            raise UsageError(
                f"most = {self.most} is below k = {self.k}", "most_below_k", "most", most=self.most, k=self.k
            )
        others = {"switch": stage_switching.ByGradients(), "rise": 1, "most": None}
        if self.times and (wrong := [name for name, usual in others.items() if getattr(self, name) != usual]):
            message = f"{wrong[0]} has no effect with times: set only one of them"
            raise UsageError(message, "no_effect_beside_times", wrong[0], name=wrong[0])

    def validate(self, workers: int, metrics: Collection[str]) -> None:
        """Raise UsageError if there are fewer than k workers, or if the metric of `switch` is not evaluated."""
        check_enough(self.k, workers)
        check_enough(max((k for _, k in self.times), default=1), workers, "times")
        stage_switching.check_metrics(self.switch, metrics)

    def traits(self, batch_size: int) -> Traits:
        """Return the strategy's traits."""
        reads = not self.times and isinstance(self.switch, stage_switching.ByGradients)
        task = self.samples or batch_size
        return Traits(reads_gradients=reads, updates=self.k, task_samples=task, task_setting="samples")

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect updates, close the round at the k-th, and raise k if `switch` requires it."""
        k, most = self.k + self.rises * self.rise, self.most or max(self.k, len(view.nodes))
        if self.times:
            past = bisect_right(self.times, view.now, key=itemgetter(0))
            k = self.times[past - 1][1] if past else self.k
        elif k + self.rise <= most:
            self.rises = self.switch.stage(event, self.rises, ())
            k = self.k + self.rises * self.rise
        may_rise = not self.times and k + self.rise <= most
        measure = stage_switching.rounds_measured(self.switch) if may_rise else 0
        yield from fastest(event, view, self.round, k, self.samples or view.batch, measure)
