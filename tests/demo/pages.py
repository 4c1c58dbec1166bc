"""Servers of pages, pages in a browser, and drawings on them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from oddlot.demo.server import PageServer, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

STROKES = Path(__file__).parent.parent / "data" / "strokes.json"
"""30 digits, three of each class, which were drawn before any model of the page was trained."""
NARROW, WIDE = 360, 1400
"""Widths of a phone and of a desktop, in pixels."""
Strokes = Sequence[Sequence[tuple[float, float]]]
SETTLED = """
() => new Promise(done => {
  const look = () => page.isWaiting || page.isDone === false ? requestAnimationFrame(look) : done();
  look();
})
"""


class Drawing(NamedTuple):
    """A digit and its pen strokes, with coordinates from 0 to 1."""

    digit: int
    strokes: Strokes


def drawings() -> list[Drawing]:
    return [Drawing(**each) for each in json.loads(STROKES.read_text())["digits"]]


@contextmanager
def running(server: PageServer) -> Iterator[PageServer]:
    """Run a server in a thread."""
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def opened(browser: "Browser", pages: Mapping[str, bytes], **options: Any) -> "Iterator[Page]":
    """Serve and open a page. Fail if a script of it raises."""
    errors = list[object]()
    with running(serve(pages, 0)) as server:
        context = browser.new_context(**options)
        try:
            page = context.new_page()
            page.on("pageerror", lambda error: errors.append(error))  # noqa: PLW0108 - it sets an attribute
            page.goto(server.address)
            page.wait_for_selector("body[data-ready]")
            yield page
        finally:
            context.close()
    assert not errors


def draw(page: "Page", strokes: Strokes) -> None:
    """Draw strokes on the pad with the mouse."""
    box = page.locator("#pad").bounding_box()
    assert box
    for stroke in strokes:
        points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point)
        page.mouse.up()
    settle(page)


def settle(page: "Page") -> None:
    """Wait until the page shows the drawing, after the pen was lifted. Its policy forbids `wait_for_function`."""
    page.evaluate(SETTLED)


def shown_digit(page: "Page") -> str:
    return page.locator("#digit").inner_text()


def picture(page: "Page", name: str) -> str:
    """Return the pixels of a canvas."""
    return str(page.evaluate("name => document.getElementById(name).toDataURL()", name))
