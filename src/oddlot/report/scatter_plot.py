"""A scatter plot with labels and ranges, for a page or as an SVG file."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from oddlot.core.support.text import clock
from oddlot.report.svg_charts import (
    BOTTOM,
    LEFT,
    LETTER,
    TOP,
    WIDTH,
    Axis,
    Entry,
    Mark,
    Point,
    axis_names,
    figure,
    legend_text,
    plot,
    uprights,
)
from oddlot.report.svg_file import placed, svg_file

HEIGHT = 260
"""Height of the plot area, in pixels."""
APART = 18
"""Distance in units of the plot area below which dots have one label."""


class Dot(NamedTuple):
    """A point of a scatter plot, with the ranges of its coordinates."""

    label: str
    name: str
    """Tooltip."""
    x: tuple[float, float, float]
    """Smallest, middle and largest value."""
    y: tuple[float, float, float]
    look: str
    """Class of the color, and its name in the legend."""


class Scatter(NamedTuple):
    """A scatter plot and its legend."""

    title: str
    plot: str
    legend: Sequence[Entry]

    def figure(self, key: str = "") -> str:
        """Return the plot for a page."""
        return figure(self.title, legend_text(self.legend), self.plot, key)

    def file(self, style: str, mark: str, notes: Sequence[str] = ()) -> str:
        """Return the plot as a self-contained SVG file, with lines of text below it.

        `style` is the style sheet of a page, and `mark` a text for a comment.
        """
        width, left, top = 760, LEFT + 10, 64
        inner = placed(self.plot, left, top, width - left - 30)
        parts, x = [f'<text class="title" x="16" y="26">{escape(self.title)}</text>'], 16.0
        for look, name, kind in self.legend:
            drawn = f'<path class="mark {look} {kind or "dot"}" d="M{x + 4} 46h{16 if kind else 0.1}"/>'
            x += 26 if kind else 16
            parts.append(f'{drawn}<text class="tick" x="{x}" y="50">{escape(name)}</text>')
            x += LETTER * len(name) + 22
        below = top + TOP + HEIGHT + BOTTOM + 12
        parts += [
            f'<text class="tick" x="16" y="{below + 17 * line}">{escape(note)}</text>'
            for line, note in enumerate(notes)
        ]
        height = below + 17 * len(notes)
        style += " .title { font-weight: 600; fill: var(--ink); }"
        return svg_file(self.title, width, height, style, mark, [*parts, inner])


def scatter(
    title: str,
    across: str,
    up: str,
    dots: Sequence[Dot],
    frontier: Sequence[Point] = (),
    x_limit: Mark | None = None,
    y_limit: Mark | None = None,
) -> Scatter:
    """Return a scatter plot over axes from 0. `frontier` is a line through points, and limits are lines with a name.

    The unit of an axis of seconds depends on its length.
    """
    end = max([dot.x[2] for dot in dots] + ([x_limit[0]] if x_limit else [])) * 1.04
    across, unit = clock(end) if across == "seconds" else (across, 1.0)
    x = Axis.until(end, unit=unit)
    y = Axis.over([0.0, *(dot.y[2] for dot in dots)] + ([y_limit[0]] if y_limit else []), HEIGHT, 0)
    parts, labels = list[str](), [axis_names(across, up, HEIGHT)]
    legend: list[Entry] = [
        (look, look.replace("-", " "), "") for look in dict.fromkeys(dot.look for dot in dots)
    ]
    if x_limit:
        parts += uprights(x, HEIGHT, [x_limit])
        legend.append(("moment", x_limit[1], "dashed"))
    if y_limit:
        name = f"<title>{escape(y_limit[1])}</title>"
        parts.append(f'<path class="mark moment" d="M0 {y(y_limit[0]):.1f}H{WIDTH}">{name}</path>')
        legend.append(("moment", y_limit[1], "dashed"))
    if len(frontier) > 1:
        path = "M" + "L".join(f"{x(px):.1f} {y(py):.1f}" for px, py in frontier)
        parts.append(f'<path class="mark line frontier" d="{path}"><title>Pareto frontier</title></path>')
        legend.append(("frontier", "Pareto frontier", "line"))
    parts += [_dot(dot, x, y) for dot in reversed(dots)]  # the first ones on top
    labels += _dot_labels(dots, x, y)
    return Scatter(title, plot(title, x, y, HEIGHT, parts, "".join(labels)), legend)


def _dot(dot: Dot, x: Axis, y: Axis) -> str:
    (left, px, right), (low, py, high) = dot.x, dot.y
    at = f"{x(px):.1f} {y(py):.1f}"
    ranges = f"M{x(left):.1f} {y(py):.1f}H{x(right):.1f}M{x(px):.1f} {y(low):.1f}V{y(high):.1f}"
    whisker = f'<path class="mark whisker {dot.look}" d="{ranges}"/>' if (left, low) != (right, high) else ""
    return (
        f'{whisker}<path class="mark dot {dot.look}" d="M{at}h0.1"><title>{escape(dot.name)}</title></path>'
    )


def _dot_labels(dots: Sequence[Dot], x: Axis, y: Axis) -> Iterator[str]:
    """Yield the labels of dots. Dots near each other have one label."""
    groups = list[list[Dot]]()
    for dot in dots:
        near = (
            group
            for group in groups
            if abs(x(group[0].x[1]) - x(dot.x[1])) < APART and abs(y(group[0].y[1]) - y(dot.y[1])) < APART
        )
        if group := next(near, None):
            group.append(dot)
        else:
            groups.append([dot])
    for group in groups:
        at, height = group[0].x[1], TOP + y(group[0].y[1]) - 8
        text = ", ".join(dot.label for dot in group)
        is_right = x(at) > WIDTH * 0.9
        side = 'text-anchor="end" dx="-8"' if is_right else 'dx="8"'
        yield f'<text class="label" {side} x="{x.percent(at)}" y="{max(height, TOP + 12):.1f}">{escape(text)}</text>'
