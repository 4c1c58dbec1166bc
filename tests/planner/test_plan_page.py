"""The table, the page and the plot of made-up plans."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from oddlot import Asynchronous, Groups, LocalSGD
from oddlot.planner.plan import Plan
from oddlot.planner.plan_options import PlanOption, Range
from oddlot.planner.plan_page import BEYOND, frontier, pareto, plan_page, write_frontier
from oddlot.planner.plan_tables import MAX_UNTRIED, notes, plain, plan_table
from oddlot.report.scatter_plot import Scatter
from oddlot.wire.half import Half
from tests.planner.plans import a_plan, option
from tests.transcripts import transcribe

LATE = option(3, "on demand", Range(9.0, 9.5, 10.0), Range(4.0, 4.5, 5.0), is_feasible=False)
NEVER = option(seconds=Range(8.0, 9.0, inf), dollars=Range(1.0, 2.0, inf), is_feasible=False)
ROUGH = option(
    4, seconds=Range(20.0, 24.0, 30.0), why="given up at 3.1 s", is_complete=False, is_feasible=False
)
FAILED = replace(ROUGH, seconds=None, dollars=None, why="diverged")
UNTRIED = replace(
    option(1), candidate=None, why="it is slower", is_feasible=False, seconds=None, dollars=None
)
FULL = a_plan(
    *(option(halved_at=(2.0, 3.5)), LATE, NEVER, ROUGH, FAILED, UNTRIED),
    minimize="dollars", deadline_hours=0.005, budget_dollars=4.0, spent_seconds=100.0, search_share=0.12,
)  # fmt: skip


def printed(plan: Plan) -> str:
    console = Console(width=120)
    with console.capture() as caught:
        console.print(plan_table(plan, "digits on fleet.toml"))
    return "\n".join([caught.get(), *(f"{name}: {text}" for name, text in notes(plan))])


def test_table_has_the_reason_of_each_rank() -> None:
    transcribe(printed(FULL))
    transcribe(printed(a_plan(*[UNTRIED] * (MAX_UNTRIED + 1))))


def test_table_of_other_strategies_has_their_names() -> None:
    local, alone = LocalSGD(steps=2), Asynchronous()
    transcribe(
        printed(a_plan(option(strategy=Groups(local, groups=2)), option(strategy=alone, codec=Half())))
    )


def test_fleet_without_zones_or_prices_has_fewer_columns() -> None:
    free = option(bought="", dollars=Range(0.0, 0.0, 0.0))
    transcribe(printed(a_plan(free)))
    assert ">bought</th>" not in plan_page(a_plan(free), "t")


def test_json_has_no_infinity() -> None:
    found = plain(FULL)
    assert found["options"][2]["seconds"] == [8.0, 9.0, None]
    assert found["best"]["lr"] == 0.1 / 3
    assert plain(a_plan(LATE))["best"] is None
    transcribe(f"{FULL}\n{a_plan(LATE)}")


def drawn(plan: Plan) -> Scatter:
    found = frontier(plan)
    assert isinstance(found, Scatter), found
    return found


def options(count: int) -> Iterator[PlanOption]:
    for number in range(1, count + 1):
        yield option(number, seconds=Range(*[5.0 * number] * 3), dollars=Range(*[12.0 / number] * 3))


@pytest.mark.parametrize("count", [1, 10])
def test_plot_has_a_labelled_point_for_each_option(count: int, tmp_path: Path) -> None:
    plot = ET.fromstring(drawn(a_plan(*options(count))).file("", "mark"))
    space = "{http://www.w3.org/2000/svg}"
    classes = [each.get("class", "") for each in plot.iter(f"{space}path")]
    assert classes.count("mark dot feasible") == count
    assert classes.count("mark line frontier") == (count > 1)
    labels = [each.text or "" for each in plot.iter(f"{space}text") if each.get("class") == "label"]
    assert ", ".join(labels).split(", ") == [f"{rank}" for rank in range(1, count + 1)]
    names = [each.text for each in plot.iter(f"{space}text") if each.get("class") == "name"]
    assert names == ["seconds", "dollars"]
    assert not write_frontier(a_plan(*options(count)), tmp_path / "plan.svg")


def test_plot_has_limits_and_omits_points_far_away() -> None:
    far = replace(ROUGH, seconds=Range(*[15.1 * BEYOND] * 3))
    found = drawn(replace(FULL, options=[*FULL.options, far]))
    assert [name for _, name, _ in found.legend] == [
        *("feasible", "infeasible", "rough estimate"),
        *("deadline 18.0 s", "budget $4.00", "Pareto frontier"),
    ]
    assert "1 beyond the axes" in found.title
    assert len(drawn(replace(FULL, deadline_hours=5.0, budget_dollars=1e3)).legend) == 4


def test_plan_without_points_has_no_plot(tmp_path: Path) -> None:
    assert isinstance(frontier(a_plan(FAILED)), str)
    assert "cannot be plotted" in write_frontier(
        a_plan(option(dollars=Range(0, 0, 0))), tmp_path / "plan.svg"
    )
    assert not (tmp_path / "plan.svg").exists()


def test_pareto_line_has_no_point_that_another_beats() -> None:
    assert pareto([(2, 2), (1, 3), (3, 2), (4, 1), (1, 4), (2, 2)]) == [(1, 3), (2, 2), (4, 1)]


def test_text_of_the_job_is_escaped_on_the_page() -> None:
    page = plan_page(replace(FULL, options=[option(bought="<b>")]), "<i>", ["oddlot train <u>"])
    assert not any(tag in page for tag in ("<b>", "<i>", "<u>"))
