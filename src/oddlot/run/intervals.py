"""Intervals, such as "100 versions", "30 seconds" or "1 epoch"."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oddlot.core.errors import InvalidValue

if TYPE_CHECKING:
    from oddlot.history.metrics import Tally

_EVERY = re.compile(r"^\s*(\d+\.?\d*|\.\d+)\s*(versions?|seconds?|epochs?)\s*$")


@dataclass(frozen=True)
class Every:
    """An interval: a number of versions, seconds or epochs."""

    count: float
    unit: str

    def __str__(self) -> str:
        return f"{self.count:g} {self.unit.removesuffix('s') if self.count == 1 else self.unit}"

    @classmethod
    def parse(cls, text: object, name: str = "the interval") -> "Every":
        """Read the setting `name`: `NUMBER versions`, `NUMBER seconds` or `NUMBER epochs`."""
        match = _EVERY.match(text) if isinstance(text, str) else None
        if not match or float(match[1]) <= 0:
            must = "an interval such as '100 versions', '30 seconds' or '1 epoch'"
            raise InvalidValue(name, text, must).retold(f"{name} = {text!r} is not {must}")
        return cls(float(match[1]), match[2].removesuffix("s") + "s")

    def times(self, tally: "Tally") -> int:
        """Return how many intervals have passed."""
        return int((tally.value(self.unit) or 0.0) // self.count)

    def reminder(self, tally: "Tally") -> "Reminder":
        """Return a reminder of the intervals from now on."""
        return Reminder(self, self.times(tally))


@dataclass
class Reminder:
    """Tracks whether something periodic is due."""

    every: Every
    done: int = 0

    def due(self, tally: "Tally") -> bool:
        """Return whether an interval has passed since the last call."""
        done, self.done = self.done, self.every.times(tally)
        return self.done > done
