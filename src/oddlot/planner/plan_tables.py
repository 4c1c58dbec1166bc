"""A plan as a table for the terminal, as text, and as JSON-serializable data."""

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import Any

from rich.table import Table

from oddlot.core.support.text import counted, duration, money, share
from oddlot.planner.candidates import momentum_of, rate_of
from oddlot.planner.plan import Plan, PlanOption, Range

PRICES = {"30 % lower": 0.7, "30 % higher": 1.3}
"""Factors on spot prices."""
MAX_UNTRIED = 5
"""Number of untried options that are listed. More are counted."""


def plan_table(plan: Plan, title: str) -> Table:
    """Return a table of the options that were tried, the best one first."""
    table = Table(title=title, box=None, pad_edge=False)
    table.title_justify = "left"
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("candidate", min_width=20)
    with_purchase = any(each.bought for each in plan.options)
    if with_purchase:
        table.add_column("bought", no_wrap=True)
    for name in ("time", "cost") if has_costs(plan) else ("time",):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why", min_width=20)
    for rank, option in enumerate(tried(plan), 1):
        cells = [f"{rank}", candidate_text(option)]
        cells += [option.bought] if with_purchase else []
        cells += [time_text(option)] + [cost_text(option)] * has_costs(plan)
        table.add_row(*cells, reason(option, plan))
    return table


def tried(plan: Plan) -> list[PlanOption]:
    """Return the options that were tried, the best one first."""
    return [each for each in plan.options if each.candidate is not None]


def has_costs(plan: Plan) -> bool:
    """Return whether any option costs money. Otherwise the fleet has no prices."""
    return any(each.dollars is not None and each.dollars.high > 0 for each in plan.options)


def candidate_text(option: PlanOption) -> str:
    """Return the option without its purchase option."""
    return option.name.removesuffix(f", {option.bought}")


def time_text(option: PlanOption) -> str:
    """Return the time of an option: middle and range, with `~` for a rough estimate."""
    return _range(option.seconds, duration, option.is_rehearsed)


def cost_text(option: PlanOption) -> str:
    """Return the cost of an option: middle and range, with `~` for a rough estimate."""
    return _range(option.dollars, money, option.is_rehearsed)


def _range(values: Range | None, tell: Callable[[float], str], is_exact: bool) -> str:
    if values is None or not isfinite(values.low):
        return "-"
    if not is_exact:
        return f"~{tell(values.middle)}"
    low, middle, high = (tell(each) if isfinite(each) else "never" for each in values)
    return middle + (f"\n{low} to {high}" if low != high else "")


def reason(option: PlanOption, plan: Plan) -> str:
    """Return the reason for the rank of an option. For an infeasible one, it has the limit that it misses."""
    missed = list[str]()
    if option.is_rehearsed and option.seconds is not None and option.dollars is not None:
        if not isfinite(option.seconds.high):
            missed.append("not all rehearsals reach the goal")
        elif plan.deadline_hours is not None and option.seconds.high > 3600 * plan.deadline_hours:
            missed.append(f"misses the deadline of {duration(3600 * plan.deadline_hours)}")
        if plan.budget_dollars is not None and plan.budget_dollars < option.dollars.high < float("inf"):
            missed.append(f"exceeds the budget of {money(plan.budget_dollars)}")
    return "; ".join([*missed, option.why])


def notes(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the lines below the table: a name and a text."""
    untried = [each for each in plan.options if each.candidate is None]
    if len(untried) > MAX_UNTRIED:
        yield (
            "not tried",
            f"{counted(len(untried), 'candidate')} that cannot pay for more staleness or were slower",
        )
    else:
        for each in untried:
            yield "not tried", f"{each.setup}: {each.why}"
    if plan.spent_seconds:
        spent = duration(plan.spent_seconds)
        yield (
            "search",
            f"{spent} of trials were given up, {share(plan.search_share)} of a run with its search",
        )
    for name, text in price_texts(plan).items():
        yield "prices", f"spot {name}: {text}"


def price_texts(plan: Plan) -> dict[str, str]:
    """Return the best option at other spot prices. Empty without spot machines or a feasible option."""
    options = tried(plan)
    if not options or not options[0].is_feasible or not any(_is_on_spot(each) for each in options):
        return {}
    return {name: _changed(plan, plan.best_at(factor)) for name, factor in PRICES.items()}


def _is_on_spot(option: PlanOption) -> bool:
    return option.bought not in {"", "on demand"}


def _changed(plan: Plan, option: PlanOption) -> str:
    if not option.is_feasible:
        return "no option is feasible"
    what = "the same" if (option.setup, option.bought) == (plan.best.setup, plan.best.bought) else option.name
    costs = "" if option.dollars is None else f", {money(option.dollars.middle)}"
    return f"{what}{costs}"


def plain(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON-serializable data."""
    options = [_plain_option(each, rank) for rank, each in enumerate(plan.options, 1)]
    has_best = bool(plan.options) and plan.options[0].is_feasible
    return {
        "goal": str(plan.goal),
        "minimize": plan.minimize,
        "deadline_hours": plan.deadline_hours,
        "budget_dollars": plan.budget_dollars,
        "best": options[0] if has_best else None,
        "options": options,
        "search_seconds": plan.spent_seconds,
        "search_share": plan.search_share,
        "curve": [_finite(row) for row in plan.curve],
        "spot_prices": {
            f"{factor}": _plain_option(plan.best_at(factor)) for factor in PRICES.values() if has_best
        },
    }


def _plain_option(option: PlanOption, rank: int | None = None) -> dict[str, Any]:
    optimizer = option.candidate and option.candidate.optimizer
    return ({} if rank is None else {"rank": rank}) | {
        "name": option.name,
        "groups": option.setup.groups,
        "batch_size": option.setup.batch_size,
        "lr": optimizer and rate_of(optimizer),
        "momentum": optimizer and momentum_of(optimizer),
        "bought": option.bought,
        "seconds": option.seconds and _finite(option.seconds),
        "dollars": option.dollars and _finite(option.dollars),
        "is_rehearsed": option.is_rehearsed,
        "is_feasible": option.is_feasible,
        "why": option.why,
    }


def _finite(values: Sequence[float]) -> list[float | None]:
    return [each if isfinite(each) else None for each in values]
