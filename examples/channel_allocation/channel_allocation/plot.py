"""Plots: cost over training, and cost by N beside the baselines."""

from collections.abc import Mapping, Sequence
from html import escape
from math import log10
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 420, 240, 60, 40, 50, 40
COLORS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#1f2937", "#94a3b8")
Line = Sequence[tuple[float, float]]


def save_plot(path: Path, training: Mapping[str, Line], by_size: Mapping[str, Line]) -> None:
    """Write an SVG file with two panels on logarithmic axes of cost.

    `training`: mean cost per stage by epoch, for each plant. `by_size`: median cost by N, for each allocation.
    """
    panels = [("Cost over training", "epoch", training), ("Cost by number of subsystems", "N", by_size)]
    wide = len(panels) * (LEFT + WIDTH + GAP)
    entries = max(len(lines) for *_, lines in panels)
    tall = TOP + HEIGHT + BOTTOM + 18 * entries
    parts = [_panel(*panel, LEFT + number * (LEFT + WIDTH + GAP)) for number, panel in enumerate(panels)]
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n',
        encoding="utf-8",
    )


def _panel(title: str, across: str, lines: Mapping[str, Line], left: float) -> str:
    points = [point for line in lines.values() for point in line]
    xs, ys = [x for x, _ in points], [log10(y) for _, y in points]
    low, high = min(ys), max(ys) if max(ys) > min(ys) else min(ys) + 1
    first, last = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1

    def at(x: float, y: float) -> str:
        down = TOP + HEIGHT * (1 - (log10(y) - low) / (high - low))
        return f"{left + WIDTH * (x - first) / (last - first):.1f} {down:.1f}"

    parts = [f'<text x="{left}" y="24" font-weight="bold">{escape(title)}</text>']
    for step in range(5):
        value = 10 ** (low + (high - low) * step / 4)
        y = TOP + HEIGHT * (1 - step / 4)
        parts.append(f'<path d="M{left} {y}h{WIDTH}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{value:,.3g}</text>')
    for x in sorted({*xs}) if len({*xs}) <= 6 else (first, (first + last) / 2, last):
        at_x = left + WIDTH * (x - first) / (last - first)
        parts.append(f'<text x="{at_x}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{x:g}</text>')
    parts.append(
        f'<text x="{left + WIDTH}" y="{TOP + HEIGHT + 34}" text-anchor="end">{escape(across)}</text>'
    )
    for number, (name, line) in enumerate(lines.items()):
        color, y = COLORS[number % len(COLORS)], TOP + HEIGHT + BOTTOM + 18 * number
        path = "L".join(at(*point) for point in line)
        parts.append(
            f'<path d="M{path}h0.1" fill="none" stroke="{color}" stroke-width="2" stroke-linecap="round"/>'
        )
        parts.append(f'<path d="M{left} {y - 4}h22" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{left + 28}" y="{y}">{escape(name)}</text>')
    return "".join(parts)
