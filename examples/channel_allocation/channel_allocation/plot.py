"""Plots: cost over training, and cost by N for all allocations."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from pathlib import Path
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 420, 280, 80, 56, 60, 30
INSET = 16
"""Pixels between the edge of a panel and its first and last points."""
MOST_TICKS = 8
LARGEST_RATIO = 20
"""Costs above this multiple of the smallest one are off the scale: they are drawn at the top edge."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#1f2937", "#94a3b8")
MARKERS = ("m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "m-4-4h8v8h-8z", "m0-5l5 9h-10z", "m0-5l5 5l-5 5l-5-5z")
"""Circle, square, triangle and diamond."""
Line = Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """A panel with a logarithmic axis of cost."""

    title: str
    across: str
    """Label of the horizontal axis."""
    lines: Mapping[str, Line]
    marks: Sequence[float] | None = None
    """Ticks of the horizontal axis. None: round ones. One tick: the lines are single points, side by side."""


def save_plot(path: Path, training: Mapping[str, Line], by_size: Mapping[str, Line]) -> None:
    """Write an SVG file with two panels.

    `training`: mean cost per stage by epoch, for each plant. `by_size`: median cost by N, for each allocation.
    """
    sizes = sorted({size for line in by_size.values() for size, _ in line})
    panels = [
        Panel("Cost over training, with exploration", "epoch", training),
        Panel("Cost by number of subsystems (median of test episodes)", "N", by_size, sizes),
    ]
    wide = len(panels) * (LEFT + WIDTH + GAP)
    tall = TOP + HEIGHT + BOTTOM + 18 * max(len(panel.lines) for panel in panels)
    parts = [_draw(panel, LEFT + number * (LEFT + WIDTH + GAP)) for number, panel in enumerate(panels)]
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n',
        encoding="utf-8",
    )


def cost_ticks(low: float, high: float) -> list[float]:
    """Return the numbers 1, 2, 5, 10, ... around `low` and `high`, or powers of ten if there are too many."""
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    for factors in ((1, 2, 5), (1,)):
        ticks = [factor * 10.0**power for power in powers for factor in factors]
        first = max(one for one in ticks if one <= low)
        last = min(one for one in ticks if one >= high and one > first)
        ticks = [one for one in ticks if first <= one <= last]
        if len(ticks) <= MOST_TICKS:
            break
    return ticks


def epoch_ticks(last: float) -> list[float]:
    """Return multiples of 1, 2, 5, 10, ... up to `last`."""
    step = next(one for one in _steps() if last / one <= MOST_TICKS)
    return [float(one) for one in range(step, int(last) + 1, step)]


def _steps() -> Sequence[int]:
    return [factor * 10**power for power in range(9) for factor in (1, 2, 5)]


class Scale(NamedTuple):
    """Where the points of a panel are, in pixels."""

    left: float
    first: float
    last: float
    ticks: Sequence[float]
    is_single: bool
    """Whether there is one N only. Lines are then numbered from left to right."""

    def across(self, x: float) -> float:
        """Return the horizontal position."""
        return self.left + INSET + (WIDTH - 2 * INSET) * (x - self.first) / ((self.last - self.first) or 1)

    def down(self, cost: float) -> float:
        """Return the vertical position, at most the top edge."""
        low, high = self.ticks[0], self.ticks[-1]
        return TOP + HEIGHT * (1 - log10(min(cost, high) / low) / log10(high / low))


def _draw(panel: Panel, left: float) -> str:
    points = [point for line in panel.lines.values() for point in line]
    xs, costs = [x for x, _ in points], [cost for _, cost in points]
    ticks = cost_ticks(min(costs), max(cost for cost in costs if cost <= LARGEST_RATIO * min(costs)))
    if panel.marks is not None and len(panel.marks) == 1:
        scale = Scale(left, 0, len(panel.lines) - 1, ticks, is_single=True)
    else:
        scale = Scale(left, min(xs), max(xs), ticks, is_single=False)
    return _axes(panel, scale) + "".join(_line(panel, scale, number) for number in range(len(panel.lines)))


def _axes(panel: Panel, scale: Scale) -> str:
    left, middle, bottom = scale.left, scale.left + WIDTH / 2, TOP + HEIGHT
    parts = [f'<text x="{left}" y="24" font-weight="bold">{escape(panel.title)}</text>']
    for tick in scale.ticks:
        y = scale.down(tick)
        parts.append(f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#e2e8f0"/>')
        parts.append(_text(left - 6, y + 4, f"{tick:,g}", "end"))
    for x in panel.marks or epoch_ticks(scale.last):
        at = middle if scale.is_single else scale.across(x)
        parts += [_text(at, bottom + 18, f"{x:g}", "middle")]
    turned = f' transform="rotate(-90 {left - 56} {TOP + HEIGHT / 2})"'
    parts.append(_text(left - 56, TOP + HEIGHT / 2, "cost per stage, log scale", "middle", turned))
    return "".join([*parts, _text(middle, bottom + 36, panel.across, "middle")])


def _line(panel: Panel, scale: Scale, number: int) -> str:
    """Return a line with its entry in the legend."""
    name, line = list(panel.lines.items())[number]
    color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)] if panel.marks else ""
    places = [(scale.across(number if scale.is_single else x), scale.down(cost)) for x, cost in line]
    left, y = scale.left, TOP + HEIGHT + BOTTOM + 18 * number
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dots = "".join(f"M{x:.1f} {y:.1f}{marker}" for x, y in [*places, (left + 11, y - 4)])
    above = [cost for _, cost in line if cost > scale.ticks[-1]]
    note = f" (off the scale: up to {_cost(max(above))})" if above else ""
    parts = [
        f'<path d="M{path}M{left} {y - 4}h22" fill="none" stroke="{color}" stroke-width="1.5"/>',
        f'<path d="{dots}" fill="{color}"/>',
        _text(left + 28, y, name.replace("_", " ") + note, "start"),
    ]
    if scale.is_single:
        parts += [
            _text(x, y - 8, _cost(cost), "middle") for (x, y), (_, cost) in zip(places, line, strict=True)
        ]
    return "".join(parts)


def _cost(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'
