"""A plan as an HTML page, and its plot of time against cost."""

from collections.abc import Iterator, Sequence
from html import escape
from math import isfinite
from pathlib import Path

from oddlot.core.support.errors import JobError
from oddlot.core.support.text import duration, money
from oddlot.planner.plan import Plan
from oddlot.planner.plan_options import PlanOption
from oddlot.planner.plan_tables import (
    TEXTS,
    columns,
    cost_text,
    has_costs,
    notes,
    price_texts,
    reason,
    time_text,
    tried,
)
from oddlot.report.html_page import MARK, check_place, check_plot_place, document, write_text
from oddlot.report.page_style import STYLE
from oddlot.report.scatter_plot import Dot, Scatter, scatter
from oddlot.report.svg_charts import Line, Mark, Point, lines

BEYOND = 3.0
"""Multiple of the largest rehearsed value above which rough estimates and limits are not drawn."""


def write_plan_page(plan: Plan, title: str, path: Path, to_run: Sequence[str] = ()) -> None:
    """Write the page. `to_run` are commands that run the plan. Raise UsageError if the page cannot be written."""
    check_place(path)
    write_text(path, plan_page(plan, title, to_run))


def write_frontier(plan: Plan, path: Path) -> str:
    """Write the plot of time against cost as an SVG file. Return why there is none, or an empty text."""
    check_plot_place(path)
    found = frontier(plan)
    if isinstance(found, str):
        return found
    names = [f"{rank}: {option.name}" for rank, option in enumerate(tried(plan), 1)]
    write_text(path, found.file(STYLE, MARK, names))
    return ""


def plan_page(plan: Plan, title: str, to_run: Sequence[str] = ()) -> str:
    """Return the page: the best option, all options, time against cost, the learning curve, and other prices."""
    body = [f"<h1>{escape(title)}</h1>", _verdict(plan)]
    body += ["<h2>Options</h2>", _table(plan), *_notes(plan)]
    found = frontier(plan)
    body += ["<h2>Time against cost</h2>"]
    body += [f'<p class="empty">{escape(found)}</p>' if isinstance(found, str) else found.figure("frontier")]
    body += ["<h2>Predicted learning</h2>", _curve(plan)]
    if prices := price_texts(plan):
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in prices.items()
        )
        body += ["<h2>If spot prices were</h2>", f'<div class="one"><table>{rows}</table></div>']
    if to_run:
        body += ["<h2>How to run it</h2>", *(f"<p><code>{escape(each)}</code></p>" for each in to_run)]
    return document(title, body, 1)


def frontier(plan: Plan) -> Scatter | str:
    """Return the plot of time against cost, or the reason why there is none."""
    options = tried(plan)
    points = [(f"{rank}", each) for rank, each in enumerate(options, 1) if _is_known(each)]
    rehearsed = [each for _, each in points if each.is_complete]
    if not rehearsed:
        return "No option has reached the goal, so there is nothing to plot."
    if not has_costs(plan):
        return "No machine of the fleet has a price, so time cannot be plotted against cost."
    most_seconds, most_dollars = (max(values) for values in zip(*map(_highest, rehearsed), strict=True))
    drawn = [
        _dot(label, each, plan)
        for label, each in points
        if _middle(each)[0] <= BEYOND * most_seconds and _middle(each)[1] <= BEYOND * most_dollars
    ]
    left_out = len(points) - len(drawn)
    title = f"Time and cost to {plan.goal}" + (f" ({left_out} beyond the axes)" if left_out else "")
    deadline = None if plan.deadline_hours is None else 3600 * plan.deadline_hours
    return scatter(
        title,
        "seconds",
        "dollars",
        drawn,
        pareto([_middle(each) for each in rehearsed]),
        _limit(deadline, most_seconds, f"deadline {duration(deadline or 0)}"),
        _limit(plan.budget_dollars, most_dollars, f"budget {money(plan.budget_dollars or 0)}"),
    )


def pareto(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other point beats in both coordinates, in the order of the first."""
    found = list[Point]()
    for point in sorted(set(points)):
        if not found or point[1] < found[-1][1]:
            found.append(point)
    return found


def _limit(value: float | None, most: float, name: str) -> Mark | None:
    """Return a line for a limit, or None if it is far beyond all rehearsed values."""
    return None if value is None or value > BEYOND * most else (value, name)


def _is_known(option: PlanOption) -> bool:
    return (
        option.seconds is not None
        and option.dollars is not None
        and isfinite(option.seconds.high)
        and isfinite(option.dollars.high)
    )


def _middle(option: PlanOption) -> Point:
    assert option.seconds is not None, "only known options are drawn"
    assert option.dollars is not None, "only known options are drawn"
    return option.seconds.middle, option.dollars.middle


def _highest(option: PlanOption) -> Point:
    assert option.seconds is not None, "only known options are drawn"
    assert option.dollars is not None, "only known options are drawn"
    return option.seconds.high, option.dollars.high


def _dot(label: str, option: PlanOption, plan: Plan) -> Dot:
    at = _middle(option)
    seconds, dollars = (option.seconds, option.dollars) if option.is_complete else (None, None)
    look = "rough-estimate" if not option.is_complete else "feasible" if option.is_feasible else "infeasible"
    about = f"{label}: {option.name}, {_one_line(time_text(option))}, {_one_line(cost_text(option))}"
    text = f"{about}; {reason(option, plan)}"
    return Dot(label, text, seconds or (at[0],) * 3, dollars or (at[1],) * 3, look)


def _one_line(text: str) -> str:
    middle, _, limits = text.partition("\n")
    return f"{middle} ({limits})" if limits else middle


def _verdict(plan: Plan) -> str:
    try:
        best = plan.best
    except JobError as error:
        return f'<p class="verdict bad">{escape(str(error))}</p>'
    figures = {
        "best option": best.name.removesuffix(f", {best.bought}"),
        "bought": best.bought,
        "time": time_text(best),
    }
    figures |= {"cost": cost_text(best)} if has_costs(plan) else {}
    figures |= {"goal": str(plan.goal), "minimized": plan.minimize}
    shown = []
    for name, text in figures.items():
        middle, _, limits = text.partition("\n")
        more = f"<small>{escape(limits)}</small>" if limits else ""
        shown.append(f"<div><dt>{escape(name)}</dt><dd>{escape(middle)}{more}</dd></div>" if text else "")
    return f"<dl>{''.join(shown)}</dl>"


def _table(plan: Plan) -> str:
    varying, constant = columns(plan)
    head = "".join(f"<th{_kind(name)}>{escape(name)}</th>" for name in ("", *varying, "why"))
    rows = []
    for rank, values in enumerate(zip(*varying.values(), strict=True), 1):
        cells = "".join(
            f'<td{_kind(name)} data-column="{escape(name)}">{escape(value).replace(chr(10), "<br>")}</td>'
            for name, value in zip(varying, values, strict=True)
        )
        why = escape(reason(tried(plan)[rank - 1], plan))
        rows.append(f'<tr><td class="number">{rank}</td>{cells}<td class="why">{why}</td></tr>')
    same = f"<p>All: {escape(', '.join(constant))}.</p>" if constant else ""
    return f'{same}<div class="options"><table><tr class="head">{head}</tr>{"".join(rows)}</table></div>'


def _kind(column: str) -> str:
    return "" if column in {*TEXTS, "why"} else ' class="number"'


def _notes(plan: Plan) -> Iterator[str]:
    for name, text in notes(plan):
        if name != "prices":
            yield f'<p class="empty">{escape(name)}: {escape(text)}</p>'
    if any(not each.is_complete and each.seconds for each in plan.options):
        yield '<p class="empty">~ is a rough estimate from a short trial.</p>'


def _curve(plan: Plan) -> str:
    points = [(seconds, loss) for seconds, _, loss in plan.curve if isfinite(loss)]
    end = max((seconds for seconds, _ in points), default=0.0)
    return lines(
        "Evaluation loss of the best option",
        "seconds",
        "loss",
        [Line("loss", points, 0)],
        end,
        values=[0.0],
        key="curve",
    )
