"""Plots of benchmarks, as SVG files in docs/plots."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from benchmarks.report import Size
from oddlot.report.svg_charts import BOTTOM, LEFT, RIGHT, TOP, Line, lines

WIDTH, HEIGHT = 860, 210
"""Size of the plot in pixels, without margins at the bottom and top."""
PLOTS = Path(__file__).parents[1] / "docs" / "plots"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#1f2937", "#94a3b8")
"""Palette of Okabe and Ito, for color-blind readers."""
STYLE = (
    ".area path{vector-effect:non-scaling-stroke}text{font:12px sans-serif;fill:#334155}"
    ".grid{stroke:#e2e8f0;fill:none}.line{fill:none;stroke-width:1.8}"
    ".dashed{stroke-dasharray:5 4}.point{stroke-linecap:round;stroke-width:5}"
    + "".join(f".c{number}{{stroke:{color}}}" for number, color in enumerate(COLORS))
)


def save(
    size: Size, name: str, title: str, across: str, up: str, drawn: Sequence[Line], end: float | None = None
) -> None:
    """Draw a plot with title and legend, up to x = `end` (default: the last point), and save it in a full run."""
    last = max(x for line in drawn for x, _ in line.points)
    figure = lines(title, across, up, drawn, end or last, height=HEIGHT)
    begin, stop = figure.index("<svg"), figure.rindex("</svg>")
    inner = figure[figure.index(">", begin) + 1 : stop]
    wide = 40 + 6.5 * max(len(line.name) for line in drawn)
    across_one = max(1, int((WIDTH - LEFT) / wide))
    plot = TOP + HEIGHT + BOTTOM
    height = 24 + plot + 16 * -(-len(drawn) // across_one)
    legend = []
    for number, line in enumerate(drawn):
        x, y = LEFT + wide * (number % across_one), 40 + 16 * (number // across_one)
        dashes = " dashed" if line.dashed else ""
        legend.append(f'<path class="line c{line.color}{dashes}" d="M{x} {y - 4}h22"/>')
        legend.append(f'<text x="{x + 28}" y="{y}">{escape(line.name)}</text>')
    head = f'<text x="{LEFT}" y="18" style="font-weight:bold">{escape(title)}</text>'
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{head}{"".join(legend)}'
        f'<svg x="{LEFT}" y="{height - plot}" width="{WIDTH - LEFT - RIGHT}" height="{plot}" overflow="visible">'
        f"{inner}</svg></svg>\n"
    )
    if size is Size.FULL:
        (PLOTS / f"{name}.svg").write_text(text)
