"""Charts as inline SVG: lines, timelines and bars. Each is a self-contained `<figure>`.

`key` becomes its attribute `data-plot`, which identifies a chart independently of its title.
"""

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from math import ceil, floor, inf, log10
from typing import NamedTuple, TypeVar

from oddlot.formatting import clock

WIDTH, HEIGHT = 860, 260
WIDE = ' class="wide"'
LEFT, RIGHT, TOP, BOTTOM = 70, 12, 10, 40
LANE = 18
MAX_LANES = 48
LETTER = 6.5
"""Mean width of a letter of a tick label, in pixels."""
WIDER, MAX_WIDER = 2.0, 2
"""Pixels added to the width of a line for each line that hides it, and how many of them count."""
NEAR, HIDDEN = 1.0, 0.5
"""Distance in pixels below which lines hide each other, and the share of a line that must be hidden."""
Row = TypeVar("Row")
Point = tuple[float, float]
Mark = tuple[float, str]
"""Seconds, and a label."""
Entry = tuple[str, str, str]
"""Of a legend: class with the color, label, and look: `line`, `dashed`, or "" for a box."""


class Line(NamedTuple):
    """A line of a chart."""

    name: str
    points: Sequence[Point]
    color: int
    """Number of its color on the page."""
    dashed: bool = False


class Bar(NamedTuple):
    """A bar of a chart, made of parts, with a label behind it."""

    name: str
    parts: Mapping[str, float]
    told: str


def lines(
    title: str,
    across: str,
    up: str,
    drawn: Sequence[Line],
    end: float,
    moments: Sequence[Mark] = (),
    width: int = WIDTH,
    from_zero: bool = False,
    named: bool = True,
    key: str = "",
) -> str:
    """Return a chart of lines over an axis from 0 to `end`. `moments` are vertical lines.

    An axis of seconds has a unit that fits. Several lines have a legend, unless `named` is false.
    """
    points = [point for line in drawn for point in line.points]
    if not points:
        return nothing(title, key)
    across, unit = clock(end) if across == "seconds" else (across, 1.0)
    x = Axis.until(end, width, unit)
    y = Axis.over([py for _, py in points] + [0.0] * from_zero, HEIGHT - BOTTOM, TOP)
    parts = [_grid(x, y, HEIGHT), _names(across, up, HEIGHT, width), *_uprights(x, HEIGHT, moments)]
    drawn_at = [[(x(px), y(py)) for px, py in line.points] for line in drawn]
    for number, (line, points) in enumerate(zip(drawn, drawn_at, strict=True)):
        later = zip(drawn[number + 1 :], drawn_at[number + 1 :], strict=True)
        over = sum(other.color != line.color and _hides(its, points) for other, its in later)
        style = f'class="mark line c{line.color}{" dashed" if line.dashed else ""}"'
        path = "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in points)
        thick = 1.8
        if len(points) == 1:  # a point is a short line with round ends
            path += "h0.1"
            style, thick = style.replace("mark line", "mark line point"), 6.0
        if over:
            style += f' style="stroke-width: {thick + WIDER * min(over, MAX_WIDER):.1f}"'
        parts.append(f'<path {style} d="{path}"><title>{escape(line.name)}</title></path>')
    legend = legend_of(drawn) if named and len(drawn) > 1 else []
    return _figure(title, HEIGHT, parts, legend_told(legend + _legend_of(moments)), key, width)


def legend_of(drawn: Sequence[Line]) -> list[Entry]:
    """Return the legend of lines."""
    return [(f"c{line.color}", line.name, "dashed" if line.dashed else "line") for line in drawn]


def _hides(one: Sequence[Point], other: Sequence[Point]) -> bool:
    """Whether a line hides most of another one, which must then be wider. Points are in pixels."""
    if len(one) == 1 or len(other) == 1:
        return list(one) == list(other)
    hidden = 0.0
    for (x1, y1), (x2, y2) in pairwise(other):
        # Near both ends of the segment: at the ends the other line may jump.
        near = [abs(_height(one, x1 + t * (x2 - x1)) - y1 - t * (y2 - y1)) < NEAR for t in (0.1, 0.9)]
        hidden += (x2 - x1) * all(near)
    return hidden > HIDDEN * (other[-1][0] - other[0][0])


def _height(line: Sequence[Point], x: float) -> float:
    """Return the y of a line at x; infinity outside it."""
    after = bisect(line, x, key=lambda point: point[0])
    if not 0 < after < len(line):
        return inf
    (left, low), (right, high) = line[after - 1], line[after]
    return low + (high - low) * (x - left) / (right - left)


def lanes(
    title: str,
    rows: Mapping[str, Mapping[str, Sequence[Point]]],
    marks: Mapping[str, Sequence[Mark]],
    end: float,
    moments: Sequence[Mark] = (),
    key: str = "",
) -> str:
    """Return a timeline with a lane per row, with its states until `end` and `marks`. Shows at most `MAX_LANES` rows.

    `moments` are vertical lines through all lanes.
    """
    shown, picked = _some(list(rows.items()))
    if not shown:
        return nothing(title, key)
    height = TOP + LANE * len(shown) + BOTTOM
    across, unit = clock(end)
    x = Axis.until(end, unit=unit)
    parts = [_grid(x, None, height), _names(across, "", height)]
    for number, (name, spells) in enumerate(shown):
        top = TOP + LANE * number
        parts.append(
            f'<text class="tick" text-anchor="end" x="{LEFT - 8}" y="{top + 13}">{escape(name)}</text>'
        )
        for state, intervals in spells.items():
            boxes = "".join(_box(x, top + 3, interval) for interval in intervals)
            if boxes:
                parts.append(
                    f'<path class="mark {state}" d="{boxes}"><title>{escape(f"{name} {state}")}</title></path>'
                )
        parts += [_moment(x(at), top, told) for at, told in marks.get(name, ())]
    states = sorted({state for _, spells in shown for state, intervals in spells.items() if intervals})
    legend = [(state, state, "") for state in states]
    legend += [("fault", "injected fault", "")] if any(marks.values()) else []
    parts += _uprights(x, height, moments)
    legend += _legend_of(moments)
    return _figure(title + picked, height, parts, legend_told(legend), key)


def bars(title: str, rows: Sequence[Bar], key: str = "") -> str:
    """Return a chart with a bar for each row above 0, at most `MAX_LANES`."""
    shown, picked = _some([row for row in rows if sum(row.parts.values()) > 0])
    if not shown:
        return nothing(title, key)
    told = LETTER * max(len(row.told) for row in shown)
    x = Axis(0.0, max(sum(row.parts.values()) for row in shown), LEFT + 80, WIDTH - RIGHT - told, ())
    drawn, names = list[str](), list(dict.fromkeys(part for row in shown for part in row.parts))
    for number, row in enumerate(shown):
        top, at = TOP + LANE * number, 0.0
        drawn.append(
            f'<text class="tick" text-anchor="end" x="{LEFT + 72}" y="{top + 13}">{escape(row.name)}</text>'
        )
        for part, value in row.parts.items():
            if value > 0:
                box, color = _box(x, top + 3, (at, at + value)), names.index(part)
                what = escape(f"{row.name}: {row.told}")
                drawn.append(f'<path class="mark c{color}" d="{box}"><title>{what}</title></path>')
                at += value
        drawn.append(f'<text class="tick" x="{x(at) + 6:.1f}" y="{top + 13}">{escape(row.told)}</text>')
    legend = [(f"c{number}", name, "") for number, name in enumerate(names)] if len(names) > 1 else []
    return _figure(title + picked, TOP + LANE * len(shown) + 8, drawn, legend_told(legend), key)


def _some(rows: Sequence[Row]) -> tuple[Sequence[Row], str]:
    """Return all rows or, of many, `MAX_LANES` evenly spaced ones, and a note for the title."""
    if len(rows) <= MAX_LANES:
        return rows, ""
    step = (len(rows) - 1) / (MAX_LANES - 1)
    return [rows[round(step * at)] for at in range(MAX_LANES)], f" ({MAX_LANES} of {len(rows):,})"


def nothing(title: str, key: str = "") -> str:
    """Return a note in place of a chart without data."""
    told = f"{escape(title)}: no data in this run"
    return f'<p class="empty" data-plot="{escape(key)}">{told}</p>'


class Axis(NamedTuple):
    """An axis: `low` is at the pixel `start`, `high` at `stop`."""

    low: float
    high: float
    start: float
    stop: float
    ticks: tuple[float, ...]
    unit: float = 1.0
    """Unit of the tick labels."""

    @classmethod
    def over(cls, values: Iterable[float], start: float, stop: float) -> "Axis":
        """Return an axis with round limits around the values."""
        values = list(values)
        low, high = min(values), max(values)
        if high == low:
            low, high = (0.0, high or 1.0) if high >= 0 else (low - 1.0, low + 1.0)
        step = _round_step((high - low) / 5)
        first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
        return cls(first * step, last * step, start, stop, tuple(n * step for n in range(first, last + 1)))

    @classmethod
    def until(cls, end: float, width: int = WIDTH, unit: float = 1.0) -> "Axis":
        """Return an axis from 0 to `end`."""
        end = end or 1.0  # a run that had no time
        rounded = cls.over([0.0, end / unit], LEFT, width - RIGHT)
        ticks = (tick * unit for tick in rounded.ticks)
        return rounded._replace(
            high=end, ticks=tuple(tick for tick in ticks if tick <= end * (1 + 1e-9)), unit=unit
        )

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.start + share * (self.stop - self.start)


def _round_step(step: float) -> float:
    """Return the next 1, 2, 5 or 10 times a power of ten."""
    power = 10.0 ** floor(log10(step))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= step * (1 - 1e-9))


def _grid(x: Axis, y: Axis | None, height: int) -> str:
    parts = []
    for value in x.ticks:
        at = x(value)
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{height - BOTTOM}"/>')
        told, below = _short(value / x.unit), height - BOTTOM + 16
        parts.append(f'<text class="tick" text-anchor="middle" x="{at:.1f}" y="{below}">{told}</text>')
    for value in y.ticks if y else ():
        at = y(value) if y else 0.0
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{x.stop}"/>')
        parts.append(
            f'<text class="tick" text-anchor="end" x="{LEFT - 8}" y="{at + 4:.1f}">{_short(value)}</text>'
        )
    return "".join(parts)


def _names(across: str, up: str, height: int, width: int = WIDTH) -> str:
    parts = [
        f'<text class="name" text-anchor="end" x="{width - RIGHT}" y="{height - 6}">{escape(across)}</text>'
    ]
    if up:
        middle = (TOP + height - BOTTOM) / 2
        parts.append(
            f'<text class="name" text-anchor="middle" transform="translate(14 {middle}) rotate(-90)">'
            f"{escape(up)}</text>"
        )
    return "".join(parts)


def _box(x: Axis, top: float, interval: Point) -> str:
    left = x(interval[0])
    width = max(x(interval[1]) - left, 0.4)
    return f"M{left:.1f} {top}h{width:.1f}v{LANE - 6}h-{width:.1f}z"


def _uprights(x: Axis, height: int, moments: Sequence[Mark]) -> list[str]:
    return [
        f'<path class="mark moment" d="M{x(at):.1f} {TOP}V{height - BOTTOM}"><title>{escape(told)}</title></path>'
        for at, told in moments
    ]


def _legend_of(moments: Sequence[Mark]) -> list[Entry]:
    return [("moment", "resumed", "dashed")] if moments else []


def _moment(at: float, top: float, told: str) -> str:
    return f'<path class="mark fault" d="M{at - 3:.1f} {top}h6l-3 6z"><title>{escape(told)}</title></path>'


def legend_told(entries: Sequence[Entry], kind: str = "legend") -> str:
    """Return a legend; empty without entries."""
    if not entries:
        return ""
    told = [
        f'<span><i class="swatch {color} {look}"></i>{escape(name)}</span>' for color, name, look in entries
    ]
    return f'<div class="{kind}">{"".join(told)}</div>'


def _figure(title: str, height: int, parts: Iterable[str], legend: str, key: str, width: int = WIDTH) -> str:
    return (
        f'<figure data-plot="{escape(key)}"><figcaption>{escape(title)}</figcaption>{legend}'
        f'<div class="chart"><svg{WIDE * (width == WIDTH)} viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg></div></figure>'
    )


def _short(value: float) -> str:
    """Return a short text of a number, such as `12k`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.4g}{unit}"
    return f"{value:.4g}" if value else "0"
