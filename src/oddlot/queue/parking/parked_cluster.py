"""A simulated cluster that a parking rule drives, and its figures."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oddlot.queue.core.commands import WakeMachine
from oddlot.queue.core.parking import Forecast, MachinesObserved, ParkingController, ParkingRule
from oddlot.queue.parking.node_series import TICKS_PER_DAY, NodeSeries


@dataclass(frozen=True)
class ParkingFigures:
    """What a rule achieves on a series."""

    utilization_before: float
    """Mean share of the existing machines that are used."""
    utilization_after: float
    """Mean share of the machines that are on that are used."""
    parked: float
    """Mean number of parked machines."""
    wakeups_per_day: float
    """How often machines were switched on."""
    unserved_share: float
    """Share of the ticks in which more machines were needed than were on."""
    parkings_per_day: float
    """How often machines were switched off."""


def powered_by(
    rule: ParkingRule, series: NodeSeries, forecasts: Sequence[Forecast] | None = None
) -> NDArray[np.int64]:
    """Return the number of machines that are on after each tick."""
    found = [
        rule.powered(int(used), int(total), forecasts[tick] if forecasts is not None else None)
        for tick, (used, total) in enumerate(zip(series.used, series.total, strict=True))
    ]
    return np.array(found, dtype=np.int64)


def figures_of(series: NodeSeries, powered: NDArray[np.int64]) -> ParkingFigures:
    """Return the figures of machines that were on after each tick. All machines are on before the first one."""
    before = np.concatenate([series.total[:1], powered[:-1]])
    before = np.minimum(before, series.total)
    days = len(series) / TICKS_PER_DAY
    return ParkingFigures(
        utilization_before=float(np.mean(series.used / np.maximum(1, series.total))),
        utilization_after=float(np.mean(series.used / np.maximum(1, powered))),
        parked=float(np.mean(series.total - powered)),
        wakeups_per_day=float(np.sum(powered > before) / days),
        unserved_share=float(np.mean(before < series.used)),
        parkings_per_day=float(np.sum(powered < before) / days),
    )


class ParkedCluster:
    """Named machines that the controller parks and wakes at once, under the demand of a series."""

    def __init__(self, controller: ParkingController) -> None:
        self.controller = controller
        self.parked: set[str] = set()

    def run(self, series: NodeSeries, forecasts: Sequence[Forecast] | None = None) -> NDArray[np.int64]:
        """Return the number of machines that are on after each tick."""
        found = list[int]()
        for tick, (used, total) in enumerate(zip(series.used.tolist(), series.total.tolist(), strict=True)):
            names = [f"node{number:05d}" for number in range(total)]
            self.parked &= set(names)
            on = [name for name in names if name not in self.parked]
            seen = MachinesObserved(
                at=float(tick),
                busy=tuple(on[:used]),
                idle=tuple(on[used:]),
                parked=tuple(sorted(self.parked)),
                waiting=max(0, used - len(on)),
                forecast=forecasts[tick] if forecasts is not None else None,
            )
            for command in self.controller.handle(seen):
                if isinstance(command, WakeMachine):
                    self.parked.discard(command.machine)
                else:
                    self.parked.add(command.machine)
            found.append(total - len(self.parked))
        return np.array(found, dtype=np.int64)
