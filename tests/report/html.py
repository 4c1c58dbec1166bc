"""A page as a tree of its elements."""

import re
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

from oddlot.report.page_style import SCRIPT

ONCE = f"<script>{SCRIPT}</script></body>"
"""The only script of a page."""
OUTSIDE = {"src", "href", "onload", "onclick"}


def parsed(text: str) -> Element:
    """A page or a part of one. Every element has an end, nothing has an address outside, and only oddlot's own script
    is there."""
    text = text.replace(ONCE, "</body>")
    assert "://" not in text
    assert "url(" not in text
    root = ET.fromstring(re.sub(r"<(meta[^>]*|wbr)>", r"<\1/>", text.removeprefix("<!doctype html>")))
    assert not [each for each in root.iter() if each.tag == "script" or OUTSIDE & {*each.keys()}]
    return root


def words(element: Element) -> str:
    """What stands in it."""
    return "".join(element.itertext())


def classes(element: Element) -> list[str]:
    return element.get("class", "").split()


def those(root: Element, tag: str, *wanted: str) -> list[Element]:
    """The elements of this kind that have these classes."""
    return [each for each in root.iter(tag) if {*classes(each)} >= {*wanted}]


def table(root: Element) -> list[list[str]]:
    """The rows of its tables."""
    return [[words(cell) for cell in row] for row in root.iter("tr")]


def plots(root: Element) -> dict[str, list[Element]]:
    """The figures, by their key; and empty ones."""
    found: dict[str, list[Element]] = {}
    for each in root.iterfind(".//*[@data-plot]"):
        found.setdefault(each.attrib["data-plot"], []).append(each)
    return found


def ticks(figure: Element, anchor: str) -> dict[str, str]:
    """What stands at the axis to the right (`middle`), or at that upwards or before lanes and bars (`end`), and how
    far to the right."""
    found = (text for text in those(figure, "text", "tick") if text.get("text-anchor") == anchor)
    return {words(tick): tick.attrib["x"] for tick in found} | {
        words(name): "" for name in those(figure, "span", "of") if anchor == "end"
    }


def marks(figure: Element, *wanted: str) -> list[str]:
    """What stands at the marks that have these classes."""
    found = those(figure, "path", "mark", *wanted) + those(figure, "i", "mark", *wanted)
    return [words(mark) or mark.attrib["title"] for mark in found]
