"""SVG plots of a benchmark's saved figures relative to their goals."""

from collections.abc import Mapping
from html import escape
from math import ceil, floor, inf, log2
from typing import Any

from benchmarks.figures import Benchmark

WIDTH, ROW, TOP, MARGIN, LETTER = 860, 38, 44, 16, 6.6
MOST = 3
"""Powers of two that the axis shows on each side of the goal."""
MET, MISSED = "#0072b2", "#d55e00"
STYLE = (
    "text{font:12px sans-serif;fill:#334155;paint-order:stroke;stroke:#fff;stroke-width:4}"
    ".tick{font-size:11px;fill:#64748b;text-anchor:middle}"
    ".grid{stroke:#e2e8f0}.goal{stroke:#334155;stroke-width:1.5}.range{stroke-width:3;stroke-linecap:round}"
)
TICKS = {-3: "1/8", -2: "1/4", -1: "1/2", 0: "goal", 1: "2x", 2: "4x", 3: "8x"}


def goal_plot(about: Benchmark, saved: Mapping[str, Any], message: Mapping[str, str]) -> str:
    """Return an SVG with a dot and a range per figure with a goal, on an axis of powers of two.

    `message` has the text of each value. Figures to the right of the line meet their goals. The text is empty if no
    figure has a goal.
    """
    shown = {key: one for key, one in saved["figures"].items() if one["goal"] and one["n"]}
    if not shown:
        return ""
    powers = {key: _powers(one) for key, one in shown.items()}
    ends = [power for each in powers.values() for power in each]
    axis = max(-MOST, min(-1, floor(min(ends)))), min(MOST, max(1, ceil(max(ends))))
    height = TOP + ROW * len(shown) + 10
    parts = [_grid(axis, height)]
    for number, (key, one) in enumerate(shown.items()):
        y = TOP + ROW * number + 14
        positions = [_x(power, axis) for power in powers[key]]
        color = MET if one["met"] else MISSED
        parts.append(f'<text x="{MARGIN}" y="{y}">{escape(_plain(about.figures[key].what))}</text>')
        reach = f"M{positions[0]:.1f} {y + 13}H{positions[-1]:.1f}"
        parts.append(f'<path class="range" stroke="{color}" stroke-opacity=".35" d="{reach}"/>')
        parts.append(f'<circle cx="{positions[1]:.1f}" cy="{y + 13}" r="4.5" fill="{color}"/>')
        beyond = max(positions) + 10
        fits = beyond + LETTER * len(message[key]) < WIDTH - MARGIN
        at, anchor = (beyond, "start") if fits else (min(positions) - 10, "end")
        parts.append(f'<text x="{at:.1f}" y="{y + 17}" text-anchor="{anchor}">{escape(message[key])}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _powers(one: Mapping[str, Any]) -> list[float]:
    """Return log2 of low, median and high relative to the goal, clipped to the axis. Positive values are better."""
    comparison, _, text = one["goal"].partition(" ")
    bound, is_floor = float(text), comparison == ">="
    if one["median"] is None:  # not reached
        return [-MOST] * 3
    powers = [
        log2(value / bound) if value > 0 else -inf for value in (one["low"], one["median"], one["high"])
    ]
    return [max(-MOST, min(MOST, power if is_floor else -power)) for power in powers]


def _x(power: float, axis: tuple[int, int]) -> float:
    """Return the x coordinate of a power of two."""
    first, last = axis
    return MARGIN + 10 + (power - first) / (last - first) * (WIDTH - 2 * MARGIN - 20)


def _grid(axis: tuple[int, int], height: int) -> str:
    parts = []
    for power in range(axis[0], axis[1] + 1):
        x, kind = _x(power, axis), "grid" if power else "goal"
        parts.append(f'<path class="{kind}" d="M{x:.1f} {TOP - 14}V{height - 6}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{TOP - 20}">{TICKS[power]}</text>')
    return "".join(parts)


def _plain(text: str) -> str:
    """Return a text without backticks and without its full stop."""
    return text.replace("`", "").removesuffix(".")
