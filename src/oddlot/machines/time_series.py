"""Step functions of time: a price, or a number of available machines."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Annotated

from oddlot.core.support.errors import InvalidValue, UsageError
from oddlot.core.support.validation import AboveZero, check_settings


def _numbers(values: object) -> str:
    whole = isinstance(values, tuple | list) and values
    good = whole and all(isinstance(value, int | float) and 0 <= value < inf for value in values)  # type: ignore[attr-defined]  # checked above
    return "" if good else "a tuple of at least one number, each finite and not negative"


@dataclass(frozen=True, slots=True)
class Steps:
    """A step function of time: `values[i]` from `seconds[i]` on.

    The first value also holds before the first time. The last value is held, or the function repeats.
    """

    seconds: Annotated[tuple[float, ...], _numbers]
    """Times of the steps, in seconds, in ascending order."""
    values: Annotated[tuple[float, ...], _numbers]
    """Value from each time on."""
    period_seconds: AboveZero | None = None
    """Period of the function, in seconds. If None, the last value is held."""

    def __post_init__(self) -> None:
        check_settings(self)
        if (times := len(self.seconds)) != (values := len(self.values)):
            message = f"{times} seconds and {values} values: give a time for each value"
            raise UsageError(message, "different_lengths", seconds=times, values=values)
        if any(b <= a for a, b in zip(self.seconds, self.seconds[1:], strict=False)):
            raise UsageError("seconds of a trace must be in ascending order", "times_out_of_order", "seconds")
        if self.period_seconds is not None and self.period_seconds <= self.seconds[-1]:
            must = f"after the last step at {self.seconds[-1]:g} s"
            raise InvalidValue("period_seconds", self.period_seconds, must, "Steps")

    @classmethod
    def of(cls, rows: list[tuple[float, float]], period_seconds: float | None = None) -> "Steps":
        """Return the step function with these rows of (second, value), in the order of time.

        Of several rows with the same time, the last is used. Repeated values are left out, except in the last row.
        """
        times, values = list[float](), list[float]()
        for place, (time, value) in enumerate(rows):
            if times and times[-1] == time:
                del times[-1], values[-1]
            if not values or values[-1] != value or place == len(rows) - 1:
                times.append(time)
                values.append(value)
        return cls(tuple(times), tuple(values), period_seconds)

    def at(self, seconds: float) -> float:
        """Return the value at a time, in seconds."""
        if self.period_seconds is not None:
            seconds %= self.period_seconds
        return self.values[max(0, bisect_right(self.seconds, seconds) - 1)]

    def changes(self, after: float = 0.0) -> Iterator[tuple[float, float]]:
        """Yield (second, value) of every step later than `after`, without end if the function repeats."""
        begin, period = 0.0, self.period_seconds
        if period is not None:
            begin = after // period * period
        while True:
            for place, (time, value) in enumerate(zip(self.seconds, self.values, strict=True)):
                when = begin + (time if place else 0.0)  # a period starts with the first value
                if when > after and (begin or place):
                    yield when, value
            if period is None:
                return
            begin += period

    def window(
        self, begin_seconds: float = 0.0, period_seconds: float | None = None, faster: float = 1.0
    ) -> "Steps":
        """Return the part from `begin_seconds` on, shifted to start at second 0.

        With `period_seconds`, the part has this length and repeats. Finally, all times are divided by `faster`: with
        60, a period of an hour takes a minute.
        """
        if self.period_seconds is not None and period_seconds is None:
            message = "a window of a trace that repeats needs `period_seconds`"
            raise UsageError(message, "missing_setting", "period_seconds", name="period_seconds")
        rows = [(0.0, self.at(begin_seconds))]
        for time, value in self.changes(begin_seconds):
            if period_seconds is not None and time - begin_seconds >= period_seconds:
                break
            rows.append(((time - begin_seconds) / faster, value))
        return Steps.of(rows, None if period_seconds is None else period_seconds / faster)
