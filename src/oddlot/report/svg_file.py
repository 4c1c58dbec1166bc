"""Plots as a self-contained SVG file."""

from collections.abc import Iterable
from html import escape


def svg_file(
    title: str, width: float, height: float, style: str, mark: str, parts: Iterable[str], kind: str = ""
) -> str:
    """Return an SVG file with these parts on a background.

    `style` is a style sheet, `mark` a text for a comment, and `kind` the class of the root element.
    """
    class_name = f'class="{kind}" ' if kind else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {class_name}viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif"><!-- {mark} --><title>{escape(title)}</title>'
        f"<style>{style}</style>"
        f'<rect width="100%" height="100%" style="fill: var(--paper)"/>{"".join(parts)}</svg>\n'
    )


def placed(plot: str, x: float, y: float, width: float) -> str:
    """Return a plot of `svg_charts` at a position in a file."""
    return plot.replace('<svg class="plot"', f'<svg class="inner" x="{x}" y="{y}" width="{width}"', 1)
