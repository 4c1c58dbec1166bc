"""A plot of the metrics of a run over its course, as an SVG image."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from oddlot.core.support.errors import UnknownName, UsageError
from oddlot.history.metrics import VERSION_FIGURES
from oddlot.report.comparison_plots import COLORS
from oddlot.report.html_page import MARK, check_plot_place, write_text
from oddlot.report.page_style import DARK, LIGHT, MARKS
from oddlot.report.svg_charts import BOTTOM, HEIGHT, LEFT, TOP, Line, line_plot
from oddlot.report.svg_file import placed, svg_file

CLASS = "oddlot-metrics"
WIDTH, HEAD, LEGEND = 420, 34, 16
"""Width of a panel, and height of its title and of an entry of its legend, in pixels."""
RULE = re.compile(r"([^{}]+)(\{[^{}]*\})")


def _style() -> str:
    """Return a style sheet for elements inside of `CLASS` only, because a notebook may insert the SVG into its page."""
    colors = (f".c{number} {{ --is: {color}; }}" for number, color in enumerate(COLORS))
    rules = f"{MARKS} .title {{ font-weight: 600; font-size: 14px; fill: var(--ink); }} {' '.join(colors)}"
    inside = RULE.sub(lambda rule: f".{CLASS} {rule[1].strip()} {rule[2]}\n", rules)
    return f".{CLASS} {{ {LIGHT} }} @media (prefers-color-scheme: dark) {{ .{CLASS} {{ {DARK} }} }} {inside}"


@dataclass(frozen=True)
class MetricPlot:
    """A plot of metrics. A notebook shows it as an image."""

    svg: str
    """The image, as the text of an SVG file."""

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"MetricPlot({len(self.svg):,} characters of SVG)"

    def save(self, path: Path) -> None:
        """Write an SVG file. Raise UsageError if that is impossible, or would overwrite another file."""
        check_plot_place(path)
        write_text(path, self.svg)


def metric_plot(
    title: str, history: Sequence[Mapping[str, float]], metrics: Sequence[str] | None, over: str
) -> MetricPlot:
    """Return a panel per metric, two in a row.

    Args:
        title: Title of the image.
        history: A row per evaluation, as in `Run.history`.
        metrics: Names of the metrics. None: all.
        over: Figure on the horizontal axis: "epochs", "versions", "seconds" or "dollars".

    Raises:
        UsageError: There are no evaluations, or a name is unknown.
    """
    if not history:
        message = "the run has no evaluations to plot: pass Job(eval_data=...)"
        raise UsageError(message, "no_evaluations")
    known = [
        name for name in dict.fromkeys(name for row in history for name in row) if name not in VERSION_FIGURES
    ]
    for name in metrics or ():
        if name not in known:
            raise UnknownName("metric", name, known, key="metrics")
    if over not in VERSION_FIGURES:
        raise UnknownName("figure", over, VERSION_FIGURES, key="over")
    end = max(row[over] for row in history)
    shown = [*known] if metrics is None else [*metrics]
    panels = list[Panel]()
    for number, name in enumerate(shown):
        points = [(row[over], row[name]) for row in history if isfinite(row.get(name, float("nan")))]
        panels.append(
            Panel(name, over, "", [Line(name, points, number % len(COLORS))] if points else [], end)
        )
    return MetricPlot(panels_of(title, panels))


class Panel(NamedTuple):
    """A panel of a plot: lines over an axis from 0 to `end`."""

    title: str
    across: str
    up: str
    drawn: Sequence[Line]
    end: float


def panels_of(title: str, panels: Sequence[Panel]) -> str:
    """Return an SVG file with panels, two in a row. Panels with several lines have a legend."""
    columns = min(2, len(panels))
    entries = max(len(panel.drawn) for panel in panels)
    legend_height = LEGEND * entries if entries > 1 else 0
    panel_height = HEAD + legend_height + TOP + HEIGHT + BOTTOM
    parts = list[str]()
    for number, panel in enumerate(panels):
        left, top = WIDTH * (number % columns) + LEFT, panel_height * (number // columns)
        parts.append(f'<text class="title" x="{left}" y="{top + 24}">{escape(panel.title)}</text>')
        for entry, line in enumerate(panel.drawn if legend_height else ()):
            y = top + HEAD + LEGEND * entry + 12
            parts.append(f'<path class="mark line c{line.color}" d="M{left} {y - 4}h22"/>')
            parts.append(f'<text class="tick" x="{left + 28}" y="{y}">{escape(line.name)}</text>')
        inner = line_plot(panel.title, panel.across, panel.up, panel.drawn, panel.end) if panel.drawn else ""
        parts.append(placed(inner, left, top + HEAD + legend_height, WIDTH - LEFT - 24))
    rows = -(-len(panels) // columns)
    width, height = WIDTH * columns, panel_height * rows + 8
    return svg_file(title, width, height, _style(), MARK, parts, CLASS)
