"""Helpers to parse a report page into a tree of elements."""

import re
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

from oddlot.report.page_style import SCRIPT

ONCE = f"<script>{SCRIPT}</script></body>"
"""The only script of a page, and the end of its body."""
OUTSIDE = {"src", "href", "onload", "onclick"}


def parsed(text: str) -> Element:
    """Parse a page or a part of one.

    Assert that every element is closed, that there are no external addresses, and that oddlot's script is the only one.
    """
    text = text.replace(ONCE, "</body>")
    assert "://" not in text
    assert "url(" not in text
    root = ET.fromstring(re.sub(r"<(meta[^>]*|wbr)>", r"<\1/>", text.removeprefix("<!doctype html>")))
    assert not [each for each in root.iter() if each.tag == "script" or OUTSIDE & {*each.keys()}]
    return root


def words(element: Element) -> str:
    """Return the text of an element."""
    return "".join(element.itertext())


def classes(element: Element) -> list[str]:
    return element.get("class", "").split()


def those(root: Element, tag: str, *wanted: str) -> list[Element]:
    """Return the elements with this tag and these classes."""
    return [each for each in root.iter(tag) if {*classes(each)} >= {*wanted}]


def table(root: Element) -> list[list[str]]:
    """Return the rows of all tables."""
    return [[words(cell) for cell in row] for row in root.iter("tr")]


def plots(root: Element) -> dict[str, list[Element]]:
    """Return all figures by key, including empty figures."""
    found: dict[str, list[Element]] = {}
    for each in root.iterfind(".//*[@data-plot]"):
        found.setdefault(each.attrib["data-plot"], []).append(each)
    return found


def ticks(figure: Element, anchor: str) -> dict[str, str]:
    """Return the tick labels and their x positions.

    `anchor` is `middle` for the horizontal axis, and `end` for the vertical axis or the names of lanes and bars.
    """
    found = (text for text in those(figure, "text", "tick") if text.get("text-anchor") == anchor)
    return {words(tick): tick.attrib["x"] for tick in found} | {
        words(name): "" for name in those(figure, "span", "of") if anchor == "end"
    }


def marks(figure: Element, *wanted: str) -> list[str]:
    """Return the texts of the marks with these classes."""
    found = those(figure, "path", "mark", *wanted) + those(figure, "i", "mark", *wanted)
    return [words(mark) or mark.attrib["title"] for mark in found]
