"""Positions of lines, lanes and bars, and the labels of their axes."""

import re
from collections.abc import Iterable
from xml.etree.ElementTree import Element

import pytest

from oddlot.report.svg_charts import MAX_LETTERS, Axis, Line, lanes, lines
from tests.report.html import parsed, those, ticks, words


def drawn(*rows: Line, across: str = "seconds", end: float = 1.0, values: Iterable[float] = ()) -> Element:
    return parsed(lines("t", across, "up", rows, end, values=values))


@pytest.mark.parametrize(
    ("across", "end", "unit", "numbers"),
    [
        ("seconds", 400.0, "seconds", ["0", "100", "200", "300", "400"]),
        ("seconds", 5400.0, "minutes", ["0", "20", "40", "60", "80"]),
        ("seconds", 18_000.0, "hours", ["0", "1", "2", "3", "4", "5"]),
        ("versions", 5400.0, "versions", ["0", "2000", "4000"]),
    ],
)
def test_time_axis_has_a_suitable_unit(across: str, end: float, unit: str, numbers: list[str]) -> None:
    figures = [drawn(Line("x", [(0.0, 4.0), (end, 8.0)], 0), across=across, end=end)]
    figures += [parsed(lanes("t", {"a": {"working": [(0.0, end)]}}, {}, end))] * (across == "seconds")
    for figure in figures:
        assert [*ticks(figure, "middle")] == numbers
        assert words(those(figure, "text", "name")[0]) == unit


def test_time_axis_ends_at_the_last_value() -> None:
    axis = Axis.until(3.4)
    assert (axis.low, axis.high, axis.ticks) == (0.0, 3.4, (0.0, 1.0, 2.0, 3.0))
    assert Axis.until(0.0)(0.0) == axis(0.0)
    assert len(Axis.until(0.3).ticks) == 4


def test_value_axis_includes_zero_if_given() -> None:
    line = Line("x", [(0.0, 4.0), (1.0, 8.0)], 0)
    assert ["0" in ticks(drawn(line, values=values), "end") for values in ([0.0], [])] == [True, False]


SAME, OTHER = [(0.0, 1.0), (1.0, 2.0), (2.0, 1.5)], [(0.0, 1.0), (2.0, 1.0)]


@pytest.mark.parametrize(
    ("points", "widths"),
    [
        ([SAME, OTHER, SAME], ["3.8", "", ""]),
        ([SAME, SAME, SAME], ["5.8", "3.8", ""]),
        ([SAME] * 9, [*["5.8"] * 7, "3.8", ""]),
        ([[(0.5, 1.5), (1.0, 2.0)], SAME], ["3.8", ""]),
        ([[(0.0, 1.0), (0.5, 2.0), (2.0, 2.0)], [(0.0, 1.0), (0.5, 2.0), (2.0, 0.0)]], ["", ""]),
        ([[(0.0, 2.0), (1.0, 2.0)], [(0.0, 2.0), (2.0, 2.0)], OTHER], ["3.8", "", ""]),
        ([[(1.0, 1.0)], [(1.0, 1.0)], [(1.0, 2.0)]], ["8.0", "", ""]),
        ([[(1.0, 1.0)], OTHER], ["", ""]),
        ([[(0.0, 1.0), (2.0, 2.0)], [(0.0, 2.0), (2.0, 1.0)]], ["", ""]),
    ],
    ids=range(9),
)
def test_hidden_line_is_wider(points: list[list[tuple[float, float]]], widths: list[str]) -> None:
    for colors in (range(len(points)), [0] * len(points)):
        rows = [Line("a", each, color) for each, color in zip(points, colors, strict=True)]
        styles = [path.get("style", "") for path in those(drawn(*rows, end=2.0), "path", "line")]
        found = ["".join(re.findall(r"stroke-width: ([0-9.]+)", style)) for style in styles]
        assert found == (widths if len({*colors}) > 1 else [""] * len(points)), "of one colour none"


def test_plot_has_the_data_for_tooltips() -> None:
    """The limits of the axes have the unit of the labels, and a point has three digits."""
    figure = drawn(Line("x", [(0.0, 4.0), (5400.0, 8.123)], 0), end=5400.0)
    (plot,), (path,) = those(figure, "svg", "plot"), those(figure, "path", "line")
    assert plot.attrib["data-x"] == "0 90"
    low, high = map(float, plot.attrib["data-y"].split())
    height = float(those(figure, "svg", "area")[0].attrib["viewBox"].split()[3])
    (*_, last) = path.attrib["d"].replace("L", " ").split()
    assert low + (1 - float(last) / height) * (high - low) == pytest.approx(8.123, abs=5e-4)


def test_machine_names_fit_or_are_truncated() -> None:
    """The margin fits the longest name, and long names are truncated."""
    for name in ("w1", "m" * 60):
        figure = parsed(lanes("t", {name: {"working": [(0.0, 1.0)]}}, {}, 1.0))
        (label,) = those(figure, "text", "tick")[-1:]
        margin = float(those(figure, "svg", "plot")[0].attrib["style"].split()[1].removesuffix("px"))
        shown = "".join(label.text or "")
        assert len(shown) == min(len(name), MAX_LETTERS)
        assert margin >= 6.5 * len(shown) + 8
