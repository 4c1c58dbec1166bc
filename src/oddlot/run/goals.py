"""When a run ends, and how often something is done: small sentences such as "accuracy>=0.98 or epochs>=20"."""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite, nan, ulp
from typing import NamedTuple

from oddlot.core.errors import InvalidValue, UnknownName, UsageError
from oddlot.core.suggestions import or_nearest
from oddlot.history.metrics import GOAL_FIGURES, Tally

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
"""how fast figures grow while nothing happens"""
TIME_FIGURES = frozenset(_PER_SECOND)
"""figures that reach a goal while nothing happens: time and money"""
BUDGETS = {"<=": ">=", "<": ">="}
_TERM = re.compile(r"^\s*([^\s<>=]+)\s*(>=|<=|>|<)\s*([-+.\deE]+)\s*$")
_EVERY = re.compile(r"^\s*(\d+\.?\d*|\.\d+)\s*(versions?|seconds?|epochs?)\s*$")


class Term(NamedTuple):
    """One alternative."""

    figure: str
    compare: str
    value: float

    def __str__(self) -> str:
        return f"{self.figure}{self.compare}{self.value:.15g}"

    @property
    def reached_by(self) -> str:
        """How the figure is compared with the number: one that only grows uses up its budget."""
        return BUDGETS.get(self.compare, self.compare) if self.figure in GOAL_FIGURES else self.compare


@dataclass(frozen=True)
class Goal:
    """Alternatives, each a figure compared with a number.

    `evaluated`: the loss is that of the evaluation set, and not known before it was measured.
    """

    terms: tuple[Term, ...]
    evaluated: bool = False

    @classmethod
    def parse(cls, text: str, metrics: Iterable[str] = (), evaluated: bool = False) -> "Goal":
        """Read `NAME OP NUMBER [or ...]`: a metric, loss, seconds, hours, versions, epochs, samples or dollars.

        All from seconds on only grow, so that `dollars<=5` is a budget, used up at 5 dollars.
        """
        known = [*GOAL_FIGURES, "loss", *metrics]
        try:
            return cls(tuple(_term(part, known) for part in re.split(r"\bor\b|,", text)), evaluated)
        except UsageError as error:
            raise error.retold(f"until = {text!r}: {error}") from None

    def due(self, tally: Tally) -> float:
        """When time or money alone will reach it, if nothing happens until then; infinity for never."""
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
        """How much of the way is done, from 0 to 1, by figures that only grow; 0 where it names none of these."""
        growing = (term for term in self.terms if term.figure in GOAL_FIGURES)
        return min(1.0, max(((tally.value(t.figure) or 0.0) / t.value for t in growing), default=0.0))

    @property
    def epochs(self) -> int | None:
        """The whole passes over the data after which the run ends at the latest, if the goal names them."""
        return min((count for count, _ in self._passes()), default=None)

    @property
    def by_epochs(self) -> str:
        """The alternative that names them; empty where none does."""
        return str(min(self._passes(), default=(0, ""))[1])

    def _passes(self) -> Iterator[tuple[int, Term]]:
        for term in self.terms:
            if term.figure == "epochs" and term.reached_by in (">=", ">"):
                yield ceil(term.value) if term.reached_by == ">=" else floor(term.value) + 1, term

    def reached(self, tally: Tally) -> Term | None:
        """The first alternative that holds; None while none does.

        Whole epochs are not decided here but by the ledger: they overlap, so that a count of samples does not tell.
        """
        for term in self.terms:
            name, compare, value = term.figure, term.reached_by, term.value
            if (name, compare) == ("epochs", ">=") and value.is_integer():
                continue
            known = name != "loss" or not self.evaluated or tally.quality.evaluated_version >= 0
            figure = tally.value(name) if known else None
            if figure is not None and _COMPARE[compare](figure, value):
                return term
        return None


def _term(part: str, known: Sequence[str]) -> Term:
    """One alternative."""
    if re.search(r"\band\b|&", part):
        told = "a run ends at the first of several goals, which are joined by `or`: there is no `and`"
        raise UsageError(told, "and_in_goal", "until", given=part)
    match = _TERM.match(part)
    try:
        name, compare, number = match.groups() if match else ("", "", "")
        value = float(number)
    except ValueError:
        value = nan
    if not isfinite(value):
        told = "a goal is of the form NAME>=NUMBER (or >, <=, <), such as epochs>=10 or loss<=0.1"
        raise UsageError(told, "invalid_goal", "until", given=part)
    if name not in known:
        told = f"there is no figure {name!r}: {or_nearest(name, known)}"
        if name == "accuracy":
            told += ". Job(eval_data=..., metrics={'accuracy': oddlot.accuracy}) measures it"
        raise UnknownName("figure", name, known, key="until").retold(told)
    if name not in GOAL_FIGURES:
        return Term(name, compare, value)
    if value <= 0:
        told = f"{name} begin at 0, so that is reached before anything is done"
        raise UsageError(told, "goal_reached_at_start", "until", figure=name, value=value)
    return Term(name, compare, value)


@dataclass(frozen=True)
class Every:
    """Something to be done each so many versions, seconds or epochs."""

    count: float
    unit: str

    def __str__(self) -> str:
        return f"{self.count:g} {self.unit}"

    @classmethod
    def parse(cls, text: object, name: str = "the interval") -> "Every":
        """Read the setting `name`: `NUMBER versions`, `NUMBER seconds` or `NUMBER epochs`."""
        match = _EVERY.match(text) if isinstance(text, str) else None
        if not match or float(match[1]) <= 0:
            must = "an interval such as '100 versions', '30 seconds' or '1 epochs'"
            raise InvalidValue(name, text, must).retold(f"{name} = {text!r} is not {must}")
        return cls(float(match[1]), match[2].removesuffix("s") + "s")

    def times(self, tally: Tally) -> int:
        """How often it has fallen due."""
        return int((tally.value(self.unit) or 0.0) // self.count)


@dataclass
class Reminder:
    """Remembers what has been done of something that falls due again and again."""

    every: Every
    done: int = 0

    def due(self, tally: Tally) -> bool:
        """True once for each time that it falls due; what was missed in between is made up for once."""
        done, self.done = self.done, self.every.times(tally)
        return self.done > done
