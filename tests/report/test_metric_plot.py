"""The plot of a run's metrics, as an SVG image."""

import re
from math import nan
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import oddlot
from oddlot import Synchronous, UsageError
from oddlot.report.metric_plot import CLASS, metric_plot
from tests.fits import a_job, fleet, rows
from tests.transcripts import raises

SVG = "{http://www.w3.org/2000/svg}"
HISTORY = [
    {"seconds": 900.0 * epoch, "epochs": float(epoch), "versions": 10.0 * epoch, "dollars": 0.0}
    | {"loss": loss, "accuracy": 1 - loss}
    for epoch, loss in enumerate([0.9, 0.5, nan, 0.2])
]


def lines_of(svg: str) -> dict[str, list[list[float]]]:
    """Return the points of each line, by the name of its metric."""
    found = {}
    for path in ET.fromstring(svg).iter(f"{SVG}path"):
        if "line" in path.get("class", "").split():
            points = re.findall(r"[ML]([-.\d]+) ([-.\d]+)", path.get("d", ""))
            found[str(path.findtext(f"{SVG}title"))] = [[float(x), float(y)] for x, y in points]
    return found


def test_each_metric_has_a_line_with_the_finite_values() -> None:
    lines = lines_of(metric_plot("title", HISTORY, None, "epochs").svg)
    assert lines.keys() == {"loss", "accuracy"}
    xs = [x for x, _ in lines["loss"]]
    assert xs == pytest.approx([0, 1000 / 3, 1000], abs=0.1), "over epochs 0, 1 and 3 of 3"
    assert [y for _, y in lines["loss"]] == sorted(y for _, y in lines["loss"]), "a falling loss goes down"
    assert lines_of(metric_plot("title", HISTORY, ["accuracy"], "seconds").svg).keys() == {"accuracy"}


def test_style_applies_inside_the_image_only() -> None:
    """A notebook may insert the image into its page."""
    style = str(ET.fromstring(metric_plot("title", HISTORY, None, "epochs").svg).findtext(f"{SVG}style"))
    selectors = re.findall(r"([^{}]+)\{[^{}]*\}", style.replace("@media (prefers-color-scheme: dark) {", ""))
    assert selectors
    assert all(each.strip(" \n}").startswith(f".{CLASS}") for each in selectors)


def test_run_plots_its_history_and_saves_it(tmp_path: Path) -> None:
    run = oddlot.fit(a_job(eval_data=rows()), Synchronous(), fleet(), until="epochs>=4")
    path = tmp_path / "loss.svg"
    plot = run.plot(path)
    assert plot._repr_svg_() == path.read_text()
    assert len(lines_of(plot.svg)["loss"]) == len(run.history) == 4
    run.plot(path, over="versions")
    assert path.read_text() != plot.svg, "a plot of oddlot is replaced"


@pytest.mark.parametrize(
    ("options", "code", "fields"),
    [
        ({"metrics": ["los"]}, "unknown_name", {"given": "los", "nearest": "loss"}),
        ({"over": "epoch"}, "unknown_name", {"given": "epoch", "nearest": "epochs"}),
        ({"path": "plot.png"}, "not_svg", {"path": "plot.png"}),
    ],
)
def test_invalid_plot_is_named(options: dict[str, Any], code: str, fields: dict[str, Any]) -> None:
    run = oddlot.fit(a_job(eval_data=rows()), Synchronous(), fleet(), until="epochs>=1")
    with raises(UsageError, code, **fields):
        run.plot(**options)


def test_run_without_evaluations_has_no_plot() -> None:
    run = oddlot.fit(a_job(), Synchronous(), fleet(), until="epochs>=1")
    with raises(UsageError, "no_evaluations"):
        run.plot()
