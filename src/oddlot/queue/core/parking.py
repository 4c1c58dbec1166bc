"""Parking: switch off idle machines that will not be needed soon (Helios' Cluster Energy Saving, section 4.3).

The controller takes observations and returns commands. A rule decides how many machines are on. A tick is the time
between two observations: 10 minutes in Helios.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from oddlot.queue.core.commands import ParkMachine, WakeMachine

FIRST_TICKS = 6
"""Ticks without history, in which the forecast rule follows the demand."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Expected demand, in machines. The present tick counts."""

    near: float
    """Mean over the next `future` ticks of the rule."""
    far: float
    """Mean over twice as many ticks."""


@dataclass(frozen=True, slots=True)
class MachinesObserved:
    """Names of all machines by their state."""

    at: float
    busy: tuple[str, ...]
    idle: tuple[str, ...]
    """Machines that are on and run no job, or are being switched on."""
    parked: tuple[str, ...]
    waiting: int = 0
    """Number of machines that waiting jobs need."""
    forecast: Forecast | None = None


class ParkingRule(Protocol):
    """Decides how many machines are on."""

    def powered(self, used: int, total: int, forecast: Forecast | None = None) -> int:
        """Return the number of machines that are on from this tick. `used` of `total` machines are needed now."""
        ...


@dataclass(frozen=True, slots=True)
class PeakSettings:
    """Settings of `PeakRule`."""

    window: int = 18
    """Number of ticks."""
    buffer: int = 40
    """Machines that are on beyond the most that were needed."""


class PeakRule:
    """Keeps the most machines on that were needed in the last ticks, and a buffer. It needs no forecast.

    More machines are switched on only if all that are on are needed.
    """

    def __init__(self, settings: PeakSettings) -> None:
        self.settings = settings
        self.recent: deque[int] = deque(maxlen=settings.window)
        self.on: int | None = None

    def powered(self, used: int, total: int, forecast: Forecast | None = None) -> int:
        self.recent.append(used)
        if self.on is None or self.on < used:
            self.on = used + self.settings.buffer
        self.on = min(self.on, max(self.recent) + self.settings.buffer, total)
        return self.on


@dataclass(frozen=True, slots=True)
class ForecastSettings:
    """Settings of `ForecastRule`. The defaults are those of Helios for Philly."""

    history: int = 2
    """Number of past ticks that the demand is compared with (h)."""
    future: int = 30
    """Number of ticks of the near forecast (f)."""
    past_drop: float | None = 0.1
    """Smallest fall below the mean of the past, in machines (xi_H). None: the past does not count."""
    future_drop: float = 0.0
    """Smallest expected fall, in machines (xi_P)."""
    least: int = 1
    """Smallest number of machines that are parked at once (xi_D)."""
    buffer: int = 20
    """Machines that are on beyond the demand (s)."""
    keep: int = 10
    """Ticks without parking after machines were switched on (k)."""


class ForecastRule:
    """Parks machines if the demand has fallen and is expected to fall further (Helios, algorithm 2)."""

    def __init__(self, settings: ForecastSettings) -> None:
        self.settings = settings
        self.past: deque[int] = deque(maxlen=settings.history)
        self.on = 0
        self.ticks = 0
        self.stable_until = 0

    def powered(self, used: int, total: int, forecast: Forecast | None = None) -> int:
        wanted = used + self.settings.buffer
        if self.ticks < FIRST_TICKS:
            self.on = wanted
        elif self.on < used:
            self.on = wanted
            self.stable_until = self.ticks + self.settings.keep
        elif forecast is not None and self._is_falling(used, forecast):
            target = min(self.on, wanted)
            self.on = target if self.on - target >= self.settings.least else self.on
        self.on = min(self.on, total)
        self.past.append(used)
        self.ticks += 1
        return self.on

    def _is_falling(self, used: int, forecast: Forecast) -> bool:
        drop = self.settings.past_drop
        return (
            self.ticks >= self.stable_until
            and (drop is None or sum(self.past) / len(self.past) - used >= drop)
            and used - forecast.near >= self.settings.future_drop
            and forecast.near >= forecast.far
        )


class ParkingController:
    """Turns the number of machines of a rule into commands."""

    def __init__(self, rule: ParkingRule) -> None:
        self.rule = rule

    def handle(self, seen: MachinesObserved) -> list[ParkMachine | WakeMachine]:
        """Return the machines to park or to wake. Only idle machines are parked, the last names first."""
        on = len(seen.busy) + len(seen.idle)
        total = on + len(seen.parked)
        target = self.rule.powered(min(total, len(seen.busy) + seen.waiting), total, seen.forecast)
        if target > on:
            return [WakeMachine(name) for name in sorted(seen.parked)[: target - on]]
        return [ParkMachine(name) for name in sorted(seen.idle, reverse=True)[: on - target]]
