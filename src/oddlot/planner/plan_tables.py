"""A plan as a table for the terminal, as text, and as JSON-serializable data."""

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import Any

from rich.table import Table

from oddlot.core.optimizers import SGD
from oddlot.core.strategy_wrapper import layers
from oddlot.core.support.text import counted, duration, money, share
from oddlot.planner.candidates import Candidate, Setup, momentum_of, rate_of
from oddlot.planner.plan import Plan
from oddlot.planner.plan_options import PlanOption, Range
from oddlot.strategies.groups import Groups
from oddlot.strategies.synchronous import Synchronous
from oddlot.wire.registry import codec_name

PRICES = {"30 % lower": 0.7, "30 % higher": 1.3}
"""Factors on spot prices."""
MAX_UNTRIED = 5
"""Number of untried options that are listed. More are counted."""


def plan_table(plan: Plan, title: str) -> Table:
    """Return a table of the options that were tried, the best one first."""
    varying, constant = columns(plan)
    table = Table(title=", ".join([title, *constant]), box=None, pad_edge=False)
    table.title_justify = "left"
    table.add_column("", justify="right", no_wrap=True)
    for name in varying:
        table.add_column(name, justify="left" if name in TEXTS else "right", no_wrap=True)
    table.add_column("why", min_width=18)
    for rank, cells in enumerate(zip(*varying.values(), strict=True), 1):
        table.add_row(f"{rank}", *cells, reason(tried(plan)[rank - 1], plan))
    return table


def _strategy(setup: Setup) -> str:
    """Return the innermost strategy; nothing for a synchronous one in groups."""
    inner = layers(setup.strategy)[-1]
    is_plain = isinstance(inner, Synchronous) and isinstance(setup.strategy, Groups)
    return "" if is_plain else type(inner).__name__


def _momentum(candidate: Candidate | None) -> str:
    optimizer = candidate and candidate.optimizer
    return f"{optimizer.momentum:g}" if isinstance(optimizer, SGD) else ""


def time_text(option: PlanOption) -> str:
    """Return the time of an option: middle and range, with `~` for a rough estimate."""
    return _range(option.seconds, duration, option.is_complete)


def cost_text(option: PlanOption) -> str:
    """Return the cost of an option: middle and range, with `~` for a rough estimate."""
    return _range(option.dollars, money, option.is_complete)


def _range(values: Range | None, tell: Callable[[float], str], is_exact: bool) -> str:
    if values is None or not isfinite(values.low):
        return "-"
    if not is_exact:
        return f"~{tell(values.middle)}"
    low, middle, high = (tell(each) if isfinite(each) else "never" for each in values)
    number, _, unit = low.partition(" ")
    shortened = number if high.partition(" ")[2] == unit else low  # 18.0 to 30.1 s
    return middle + (f"\n{shortened} to {high}" if low != high else "")


TEXTS = {"strategy", "codec", "bought"}
"""Columns with text. The others have numbers."""
COLUMNS: dict[str, Callable[[PlanOption], str]] = {
    "strategy": lambda option: _strategy(option.setup),
    "groups": lambda option: f"{option.setup.groups}" if isinstance(option.setup.strategy, Groups) else "",
    "batch": lambda option: f"{option.setup.batch_size:,}",
    "codec": lambda option: "" if option.setup.codec is None else codec_name(option.setup.codec),
    "lr": lambda option: "" if option.candidate is None else f"{rate_of(option.candidate.optimizer):.3g}",
    "momentum": lambda option: _momentum(option.candidate),
    "bought": lambda option: option.bought,
    "time": time_text,
    "cost": cost_text,
}
CONSTANT = ("strategy", "groups", "batch", "codec")
"""Columns that are left out if all options have the same value."""


def columns(plan: Plan) -> tuple[dict[str, list[str]], list[str]]:
    """Return the columns of the table by name, and the constant values that have no column."""
    options, constant = tried(plan), list[str]()
    found = {name: [tell(option) for option in options] for name, tell in COLUMNS.items()}
    if not has_costs(plan):
        del found["cost"]
    for name in CONSTANT:
        if len(options) > 1 and len(set(found[name])) == 1:
            value = found.pop(name)[0]
            constant += [f"{name} {value}"] if value else []
    return {name: cells for name, cells in found.items() if any(cells)}, constant


def tried(plan: Plan) -> list[PlanOption]:
    """Return the options that were tried, the best one first."""
    return [each for each in plan.options if each.candidate is not None]


def has_costs(plan: Plan) -> bool:
    """Return whether any option costs money. Otherwise the fleet has no prices."""
    return any(each.dollars is not None and each.dollars.high > 0 for each in plan.options)


def reason(option: PlanOption, plan: Plan) -> str:
    """Return the reason for the rank of an option. For an infeasible one, it has the limit that it misses."""
    missed = list[str]()
    if option.is_complete and option.seconds is not None and option.dollars is not None:
        if not isfinite(option.seconds.high):
            missed.append("not all rehearsals reach the goal")
        elif plan.deadline_hours is not None and option.seconds.high > 3600 * plan.deadline_hours:
            missed.append(f"misses the deadline of {duration(3600 * plan.deadline_hours)}")
        if plan.budget_dollars is not None and plan.budget_dollars < option.dollars.high < float("inf"):
            missed.append(f"exceeds the budget of {money(plan.budget_dollars)}")
    return "; ".join([*missed, option.why])


def notes(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the lines below the table: a name and a text."""
    if halved := plan.options[0].halved_at if plan.options else ():
        epochs = " and ".join(f"{each:.3g}" for each in halved)
        yield "schedule", f"the learning rate of the best candidate is halved at {epochs} epochs"
    untried = [each for each in plan.options if each.candidate is None]
    if len(untried) > MAX_UNTRIED:
        first = untried[0]
        yield "not tried", f"{counted(len(untried), 'candidate')}, such as {first.setup}: {first.why}"
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
        "is_complete": option.is_complete,
        "is_feasible": option.is_feasible,
        "why": option.why,
    }


def _finite(values: Sequence[float]) -> list[float | None]:
    return [each if isfinite(each) else None for each in values]
