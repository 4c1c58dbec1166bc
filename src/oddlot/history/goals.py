"""Goals, such as "accuracy>=0.98 or epochs>=20", and intervals, such as "100 versions"."""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite, nan, ulp
from typing import NamedTuple

from oddlot.core.support.errors import InvalidValue, UnknownName, UsageError
from oddlot.core.support.text import or_nearest
from oddlot.history.metrics import GOAL_FIGURES, Tally

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
            raise InvalidValue(name, text, must).with_message(f"{name} = {text!r} is not {must}")
        return cls(float(match[1]), match[2].removesuffix("s") + "s")

    def times(self, tally: Tally) -> int:
        """Return the number of intervals that have passed."""
        return int((tally.value(self.unit) or 0.0) // self.count)

    def interval(self, made: Mapping[str, float]) -> int:
        """Return the interval of an evaluated version, given its row of the history.

        With seconds, each version is an interval: it is older than its evaluation.
        """
        return int(made["versions"]) if self.unit == "seconds" else int(made[self.unit] // self.count)

    def reminder(self, tally: Tally) -> "Reminder":
        """Return a reminder that starts now."""
        return Reminder(self, self.times(tally))


@dataclass
class Reminder:
    """Tracks when a periodic task is due."""

    every: Every
    done: int = 0

    def due(self, tally: Tally) -> bool:
        """Return whether an interval has passed since the last call."""
        done, self.done = self.done, self.every.times(tally)
        return self.done > done

    def would_be_due(self, tally: Tally) -> bool:
        """Return what `due` would return."""
        return self.every.times(tally) > self.done


_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_PER_SECOND: dict[str, Callable[[Tally], float]] = {
    "seconds": lambda _: 1.0,
    "hours": lambda _: 1 / 3600,
    "dollars": lambda tally: tally.cost.dollars_per_second,
}
"""Growth per second of the metrics that grow without merges."""
TIME_FIGURES = frozenset(_PER_SECOND)
"""Metrics that grow without merges: time and cost."""
BUDGETS = {"<=": ">=", "<": ">="}
_TERM = re.compile(r"^\s*([^\s<>=]+)\s*(>=|<=|>|<)\s*([-+.\deE]+)\s*$")


class Term(NamedTuple):
    """One alternative of a goal."""

    figure: str
    compare: str
    value: float

    def __str__(self) -> str:
        return f"{self.figure}{self.compare}{self.value:.15g}"

    @property
    def reached_by(self) -> str:
        """Return the comparison that ends the run. For an upper limit, such as `dollars<=5`, it is `>=`."""
        return BUDGETS.get(self.compare, self.compare) if self.figure in GOAL_FIGURES else self.compare

    def is_met_by(self, value: float) -> bool:
        """Return whether this value of the metric ends the run."""
        return _COMPARE[self.reached_by](value, self.value)


@dataclass(frozen=True)
class Goal:
    """Alternative terms, each a metric compared with a number.

    `evaluated`: whether the loss is the evaluation loss. It is unknown before the first evaluation.
    """

    terms: tuple[Term, ...]
    evaluated: bool = False

    @classmethod
    def parse(cls, text: str, metrics: Iterable[str] = (), evaluated: bool = False) -> "Goal":
        """Read `NAME OP NUMBER [or ...]`: a metric, loss, seconds, hours, versions, epochs, samples or dollars.

        All of these except metrics and loss only grow, so `dollars<=5` is a budget of 5 dollars.
        """
        known = [*GOAL_FIGURES, "loss", *metrics]
        try:
            return cls(tuple(_term(part, known) for part in re.split(r"\bor\b|,", text)), evaluated)
        except UsageError as error:
            raise error.with_message(f"until = {text!r}: {error}") from None

    def due(self, tally: Tally) -> float:
        """Return the time when time or cost reaches the goal, or infinity."""
        whens = [inf]
        for term in self.terms:
            figure = term.figure
            rate = _PER_SECOND[figure](tally) if figure in _PER_SECOND and term.reached_by == ">=" else 0.0
            if rate:
                left = (term.value - (tally.value(figure) or 0.0)) / rate
                whens.append(tally.seconds + max(left, 1e-9, 4 * ulp(tally.seconds)))
        return min(whens)

    def __str__(self) -> str:
        return " or ".join(map(str, self.terms))

    def share(self, tally: Tally) -> float:
        """Return the progress, 0 to 1, by metrics that only grow. 0 if the goal has no such metric."""
        growing = (term for term in self.terms if term.figure in GOAL_FIGURES)
        return min(1.0, max(((tally.value(t.figure) or 0.0) / t.value for t in growing), default=0.0))

    @property
    def epochs(self) -> int | None:
        """Return the maximum number of epochs of the run, or None without a limit."""
        return min((count for count, _ in self._passes()), default=None)

    @property
    def by_epochs(self) -> str:
        """Return the term with this number of epochs as text, or an empty string."""
        return str(min(self._passes(), default=(0, ""))[1])

    def _passes(self) -> Iterator[tuple[int, Term]]:
        for term in self.terms:
            if term.figure == "epochs" and term.reached_by in (">=", ">"):
                yield ceil(term.value) if term.reached_by == ">=" else floor(term.value) + 1, term

    def reached(self, tally: Tally) -> Term | None:
        """Return the first term that is reached, or None.

        Terms of complete epochs are left to the ledger, because epochs overlap.
        """
        for term in self.terms:
            if (term.figure, term.reached_by) == ("epochs", ">=") and term.value.is_integer():
                continue
            known = term.figure != "loss" or not self.evaluated or tally.quality.evaluated_version >= 0
            figure = tally.value(term.figure) if known else None
            if figure is not None and term.is_met_by(figure):
                return term
        return None


def _term(part: str, known: Sequence[str]) -> Term:
    """Return the term of a goal from its text. Raise UsageError if it is invalid."""
    if re.search(r"\band\b|&", part):
        message = "goals are joined by `or`, and `and` is not supported: the run ends at the first goal that is reached"
        raise UsageError(message, "and_in_goal", "until", given=part)
    match = _TERM.match(part)
    try:
        name, compare, number = match.groups() if match else ("", "", "")
        value = float(number)
    except ValueError:
        value = nan
    if not isfinite(value):
        message = "a goal has the form NAME>=NUMBER (or >, <=, <), such as epochs>=10 or loss<=0.1"
        raise UsageError(message, "invalid_goal", "until", given=part)
    if name not in known:
        message = f"unknown metric {name!r}. {or_nearest(name, known)}"
        if name == "accuracy":
            message += ". Job(eval_data=..., metrics={'accuracy': oddlot.accuracy}) measures it"
        raise UnknownName("figure", name, known, key="until").with_message(message)
    if name not in GOAL_FIGURES:
        return Term(name, compare, value)
    if value <= 0:
        message = f"{name} start at 0, so this goal is already reached"
        raise UsageError(message, "goal_reached_at_start", "until", figure=name, value=value)
    return Term(name, compare, value)
