"""Charts as inline SVG and HTML: lines, timelines and bars. Each is a self-contained `<figure>`.

The plot area is stretched to the width of the page. Its text is placed by percentages and not stretched. `key` becomes
the attribute `data-plot`. It identifies a chart independently of its title. `data-x` and `data-y` are the limits of the
axes. The page's script uses them to show the values under the pointer.
"""

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from math import ceil, floor, inf, log10
from typing import NamedTuple, TypeVar

from oddlot.core.support.text import clock

WIDTH, HEIGHT = 1000, 190
"""Units of the plot area. Units of the height are pixels."""
LEFT, RIGHT, TOP, BOTTOM = 60, 14, 10, 40
"""Margins of the plot area, in pixels."""
LANE = 18
MAX_LANES = 48
LETTER = 6.5
"""Mean width of a letter of a tick label, in pixels."""
MAX_LETTERS = 16
"""Length above which the name of a lane is cut."""
WIDER, MAX_WIDER = 2.0, 2
"""Pixels added to the width of a line for each line that hides it, and the largest number of lines that count."""
NEAR, HIDDEN = 1.0, 0.5
"""Distance in pixels below which lines hide each other, and the share of a line that must be hidden."""
Row = TypeVar("Row")
Point = tuple[float, float]
Mark = tuple[float, str]
"""Seconds and label."""
Entry = tuple[str, str, str]
"""Entry of a legend: class of the color, label, and look: `line`, `dashed`, or "" for a box."""


class Line(NamedTuple):
    """A line of a chart."""

    name: str
    points: Sequence[Point]
    color: int
    """Index of the color on the page."""
    dashed: bool = False


class Bar(NamedTuple):
    """A bar of a chart: its parts, and a label after it."""

    name: str
    parts: Mapping[str, float]
    message: str


def lines(
    title: str,
    across: str,
    up: str,
    drawn: Sequence[Line],
    end: float,
    moments: Sequence[Mark] = (),
    height: int = HEIGHT,
    values: Iterable[float] = (),
    named: bool = True,
    key: str = "",
) -> str:
    """Return a chart of lines over an axis from 0 to `end`. `moments` are vertical lines.

    The unit of an axis of seconds depends on `end`. The vertical axis includes `values`, such as 0. Several lines, or a
    dashed line, have a legend, unless `named` is False.
    """
    if not any(line.points for line in drawn):
        return nothing(title, key)
    legend = legend_of(drawn) if named and (len(drawn) > 1 or drawn[0].dashed) else []
    drawn_plot = line_plot(title, across, up, drawn, end, moments, height, values)
    return figure(title, legend_text(legend + _legend_of(moments)), drawn_plot, key)


def line_plot(
    title: str,
    across: str,
    up: str,
    drawn: Sequence[Line],
    end: float,
    moments: Sequence[Mark] = (),
    height: int = HEIGHT,
    values: Iterable[float] = (),
) -> str:
    """Return the plot of `lines`, without its title and legend. At least one line must have points."""
    points = [point for line in drawn for point in line.points]
    across, unit = clock(end) if across == "seconds" else (across, 1.0)
    x = Axis.until(end, unit=unit)
    y = Axis.over([*(py for _, py in points), *values], height, 0)
    parts = [*uprights(x, height, moments)]
    drawn_at = [[(x(px), y(py)) for px, py in line.points] for line in drawn]
    for number, (line, points) in enumerate(zip(drawn, drawn_at, strict=True)):
        later = zip(drawn[number + 1 :], drawn_at[number + 1 :], strict=True)
        over = sum(other.color != line.color and _hides(its, points) for other, its in later)
        style = f'class="mark line c{line.color}{" dashed" if line.dashed else ""}"'
        path = "M" + "L".join(f"{px:.1f} {py:.2f}" for px, py in points)
        thick = 1.8
        if len(points) == 1:  # a single point is a short line with round ends
            path += "h0.1"
            style, thick = style.replace("mark line", "mark line point"), 6.0
        if over:
            style += f' style="stroke-width: {thick + WIDER * min(over, MAX_WIDER):.1f}"'
        parts.append(f'<path {style} d="{path}"><title>{escape(line.name)}</title></path>')
    return plot(title, x, y, height, parts, axis_names(across, up, height))


def legend_of(drawn: Sequence[Line]) -> list[Entry]:
    """Return the legend of lines."""
    return [(f"c{line.color}", line.name, "dashed" if line.dashed else "line") for line in drawn]


def _hides(one: Sequence[Point], other: Sequence[Point]) -> bool:
    """Return True if a line hides most of `other`. Draw `other` wider then. Points are in pixels."""
    if len(one) == 1 or len(other) == 1:
        return list(one) == list(other)
    hidden = 0.0
    for (x1, y1), (x2, y2) in pairwise(other):
        # compare near the ends of the segment, because `one` may jump at the ends
        near = [abs(_height(one, x1 + t * (x2 - x1)) - y1 - t * (y2 - y1)) < NEAR for t in (0.1, 0.9)]
        hidden += (x2 - x1) * all(near)
    return hidden > HIDDEN * (other[-1][0] - other[0][0])


def _height(line: Sequence[Point], x: float) -> float:
    """Return the y of a line at x, or infinity outside the line."""
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
    """Return a timeline with a lane per row, its states until `end`, and its `marks`. It has at most `MAX_LANES` rows.

    `moments` are vertical lines through all lanes.
    """
    shown, picked = _some(list(rows.items()))
    if not shown:
        return nothing(title, key)
    height = LANE * len(shown)
    across, unit = clock(end)
    x = Axis.until(end, unit=unit)
    parts, labels = list[str](), [axis_names(across, "", height)]
    for number, (name, spells) in enumerate(shown):
        top = LANE * number
        labels.append(_label(name, TOP + top + 13))
        for state, intervals in spells.items():
            boxes = "".join(_box(x, top + 3, interval) for interval in intervals)
            if boxes:
                parts.append(
                    f'<path class="mark {state}" d="{boxes}"><title>{escape(f"{name} {state}")}</title></path>'
                )
        labels += [
            _moment(x.percent(at), TOP + top, f"{name}: {message}") for at, message in marks.get(name, ())
        ]
    states = sorted({state for _, spells in shown for state, intervals in spells.items() if intervals})
    legend = [(state, state, "") for state in states]
    legend += [("fault", "injected fault", "")] if any(marks.values()) else []
    parts += uprights(x, height, moments)
    legend += _legend_of(moments)
    left = 12 + LETTER * min(MAX_LETTERS, max(len(name) for name, _ in shown))
    drawn_plot = plot(title + picked, x, None, height, parts, "".join(labels), left)
    return figure(title + picked, legend_text(legend), drawn_plot, key)


def _label(name: str, y: float) -> str:
    """Return the label of a lane. A long name is cut."""
    short = name if len(name) <= MAX_LETTERS else f"{name[: MAX_LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}"
    message = f"<title>{escape(name)}</title>" if short != name else ""
    return f'<text class="tick" text-anchor="end" x="-8" y="{y}">{escape(short)}{message}</text>'


def bars(title: str, rows: Sequence[Bar], key: str = "") -> str:
    """Return a chart with a bar for each row with a positive sum, at most `MAX_LANES`."""
    shown, picked = _some([row for row in rows if sum(row.parts.values()) > 0])
    if not shown:
        return nothing(title, key)
    most = max(sum(row.parts.values()) for row in shown)
    drawn, names = list[str](), list(dict.fromkeys(part for row in shown for part in row.parts))
    for row in shown:
        message = escape(f"{row.name}: {row.message}")
        parts = "".join(
            f'<i class="mark c{names.index(part)}" style="width: {100 * value / most:.2f}%" title="{message}"></i>'
            for part, value in row.parts.items()
            if value > 0
        )
        drawn.append(
            f'<span class="tick of">{escape(row.name)}</span><span class="track">{parts}</span>'
            f'<span class="tick">{escape(row.message)}</span>'
        )
    legend = [(f"c{number}", name, "") for number, name in enumerate(names)] if len(names) > 1 else []
    return figure(title + picked, legend_text(legend), f'<div class="bars">{"".join(drawn)}</div>', key)


def _some(rows: Sequence[Row]) -> tuple[Sequence[Row], str]:
    """Return all rows, or `MAX_LANES` evenly spaced rows with a note for the title."""
    if len(rows) <= MAX_LANES:
        return rows, ""
    step = (len(rows) - 1) / (MAX_LANES - 1)
    return [rows[round(step * at)] for at in range(MAX_LANES)], f" ({MAX_LANES} of {len(rows):,})"


def nothing(title: str, key: str = "") -> str:
    """Return a note instead of a chart without data."""
    message = f"{escape(title)}: no data in this run"
    return f'<p class="empty" data-plot="{escape(key)}">{message}</p>'


class Axis(NamedTuple):
    """An axis: `low` is at position `start` of the plot area, `high` at `stop`."""

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
    def until(cls, end: float, unit: float = 1.0) -> "Axis":
        """Return an axis across the plot area from 0 to `end`."""
        end = end or 1.0  # a run without any time
        rounded = cls.over([0.0, end / unit], 0, WIDTH)
        ticks = (tick * unit for tick in rounded.ticks)
        return rounded._replace(
            high=end, ticks=tuple(tick for tick in ticks if tick <= end * (1 + 1e-9)), unit=unit
        )

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.start + share * (self.stop - self.start)

    def percent(self, value: float) -> str:
        """Return the position of a value across the plot area, as in `12.5%`."""
        return f"{100 * self(value) / WIDTH:.4g}%"

    @property
    def limits(self) -> str:
        """Return both ends of the axis in the unit of its labels, as text."""
        return f"{self.low / self.unit:.9g} {self.high / self.unit:.9g}"


def _round_step(step: float) -> float:
    """Return the smallest 1, 2, 5 or 10 times a power of ten that is at least `step`."""
    power = 10.0 ** floor(log10(step))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= step * (1 - 1e-9))


def _ticks(x: Axis, y: Axis | None, height: int) -> str:
    """Return the labels of both axes."""
    below = TOP + height + 16
    marks = [
        f'<text class="tick" text-anchor="middle" x="{x.percent(value)}" y="{below}">{_short(value / x.unit)}</text>'
        for value in x.ticks
    ]
    for value in y.ticks if y else ():
        at = TOP + 4 + (y(value) if y else 0.0)
        marks.append(f'<text class="tick" text-anchor="end" x="-8" y="{at:.1f}">{_short(value)}</text>')
    return "".join(marks)


def _grid(x: Axis, y: Axis | None, height: int) -> str:
    across = "".join(f"M{x(value):.1f} 0V{height}" for value in x.ticks)
    up = "".join(f"M0 {y(value):.1f}H{WIDTH}" for value in y.ticks) if y else ""
    return f'<path class="grid" d="{across}{up}"/>'


def axis_names(across: str, up: str, height: int) -> str:
    """Return the names of both axes."""
    parts = [f'<text class="name" text-anchor="end" x="100%" y="{height + TOP + 34}">{escape(across)}</text>']
    if up:
        turn = f"translate({14 - LEFT} {TOP + height / 2:g}) rotate(-90)"
        parts.append(f'<text class="name" text-anchor="middle" transform="{turn}">{escape(up)}</text>')
    return "".join(parts)


def _box(x: Axis, top: float, interval: Point) -> str:
    left = x(interval[0])
    width = max(x(interval[1]) - left, 0.4)
    return f"M{left:.1f} {top}h{width:.1f}v{LANE - 6}h-{width:.1f}z"


def uprights(x: Axis, height: int, moments: Sequence[Mark]) -> list[str]:
    """Return vertical lines."""
    return [
        f'<path class="mark moment" d="M{x(at):.1f} 0V{height}"><title>{escape(message)}</title></path>'
        for at, message in moments
    ]


def _legend_of(moments: Sequence[Mark]) -> list[Entry]:
    return [("moment", "resumed", "dashed")] if moments else []


def _moment(at: str, top: float, message: str) -> str:
    mark = f'<path class="mark fault" d="M-4 -1h8l-4 8z"><title>{escape(message)}</title></path>'
    return f'<svg x="{at}" y="{top}" overflow="visible">{mark}</svg>'


def legend_text(entries: Sequence[Entry], kind: str = "legend") -> str:
    """Return a legend. Empty without entries."""
    if not entries:
        return ""
    parts = [
        f'<span><i class="swatch {color} {look}"></i>{escape(name)}</span>' for color, name, look in entries
    ]
    return f'<div class="{kind}">{"".join(parts)}</div>'


def plot(
    title: str, x: Axis, y: Axis | None, height: int, parts: Iterable[str], labels: str, left: float = LEFT
) -> str:
    """Return a plot: the stretched area with its grid and `parts`, and the labels around it."""
    area = (
        f'<svg class="area" y="{TOP}" width="100%" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'preserveAspectRatio="none">{_grid(x, y, height)}{"".join(parts)}</svg>'
    )
    limits = f'data-x="{x.limits}"' + (f' data-y="{y.limits}"' if y else "")
    return (
        f'<svg class="plot" style="--left: {left:g}px" height="{TOP + height + BOTTOM}" {limits} role="img" '
        f'aria-label="{escape(title)}">{area}{_ticks(x, y, height)}{labels}</svg>'
    )


def figure(title: str, legend: str, content: str, key: str) -> str:
    """Return a chart with its title and legend."""
    return f'<figure data-plot="{escape(key)}"><figcaption>{escape(title)}</figcaption>{legend}{content}</figure>'


def _short(value: float) -> str:
    """Return a short text of a number, such as `12k`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.4g}{unit}"
    return f"{value:.4g}" if value else "0"
