"""The page in Chromium: its arithmetic, drawn digits, sliders, and its policy."""

import json
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from oddlot import Run
from oddlot.demo.model_file import WEIGHTS, pack
from oddlot.demo.run_site import run_site
from oddlot.demo.server import HOST
from oddlot.demo.site import INDEX, shipped_site, site, write_copy
from tests.browser import needs_chromium
from tests.demo.networks import SHARED, loaded, model
from tests.demo.pages import NARROW, draw, drawings, opened, picture, settle, shown_digit
from tools.digit_model_files import unpack

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_chromium
LEAST_RECOGNIZED = 27
TOLERANCE = 1e-3
OUTPUTS = """
pixels => pixels.map(each => {
  const values = Float32Array.from(each), code = page.network.encode(values);
  return { code, decoded: page.network.decode(code), certainties: page.network.certainties(values) };
}).map(each => Object.fromEntries(Object.entries(each).map(([name, values]) => [name, [...values]])))
"""


# --- arithmetic ----------------------------------------------------------------------------------


@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize(
    "widths", [SHARED, {"encoder": (784, 50, 40, 30)}], ids=["classifier on hidden", "classifier on pixels"]
)
def test_arithmetic_equals_pytorch(browser: "Browser", widths: dict[str, Any], int8: bool) -> None:
    """The network in JavaScript and a PyTorch module with the same weights have equal outputs."""
    files = pack(model(**widths), {"name": "test"}, int8=int8)
    network = loaded(unpack(files, "test"), **widths)
    with opened(browser, site(files, None)) as page:
        check_outputs(page, network)


def check_outputs(page: "Page", network: Any) -> None:
    """Compare the outputs of the page and of a PyTorch module for random pixels."""
    pixels = torch.rand(8, 784, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        code = network.encode(pixels)
        expected = {"code": code, "decoded": network.decode(code)}
        expected["certainties"] = network.classify(pixels).softmax(1)
    found = page.evaluate(OUTPUTS, pixels.tolist())
    for name, values in expected.items():
        computed = np.array([each[name] for each in found])
        np.testing.assert_allclose(computed, values.numpy(), rtol=0, atol=TOLERANCE)
        assert values.std() > 10 * TOLERANCE, "the outputs differ between inputs"


def test_page_of_a_run_computes_as_its_model(browser: "Browser", autoencoder_run: Run) -> None:
    """The parameters of the workload `digit_autoencoder` are read as its model uses them."""
    with opened(browser, run_site(str(autoencoder_run.folder), int8=False)) as page:
        check_outputs(page, autoencoder_run.model)
        share = f"{100 * autoencoder_run.summary['accuracy']:.1f} %"
        assert share in page.locator("#model").inner_text()


def test_drawing_is_centered_and_scaled_as_in_mnist(page: "Page") -> None:
    """The ink fits into 20 x 20 pixels and touches two opposite sides. The center of mass is in the middle."""
    for drawing in drawings():
        ink = np.array(page.evaluate("strokes => [...pixelsOf(strokes)]", drawing.strokes)).reshape(28, 28)
        rows, columns = (np.flatnonzero(ink.max(axis=axis) > 0.02) for axis in (1, 0))
        sides = sorted([np.ptp(rows) + 1, np.ptp(columns) + 1])
        assert 19 <= sides[1] <= 21
        middle = np.arange(28) + 0.5
        center = [(ink.sum(axis=axis) * middle).sum() / ink.sum() for axis in (1, 0)]
        assert center == pytest.approx([14, 14], abs=0.15)
        assert ((ink > 0.2) & (ink < 0.8)).sum() > 20, "it is anti-aliased"


def test_place_and_size_of_a_drawing_do_not_matter(page: "Page") -> None:
    strokes = drawings()[7].strokes
    half = [[[0.5 * x + 0.4, 0.5 * y + 0.1] for x, y in stroke] for stroke in strokes]
    one, other = (
        np.array(page.evaluate("strokes => [...pixelsOf(strokes)]", each)) for each in (half, strokes)
    )
    np.testing.assert_allclose(one, other, atol=1e-3)


# --- drawing -------------------------------------------------------------------------------------


def test_drawn_digits_are_recognized(page: "Page") -> None:
    found = list[tuple[int, str]]()
    for drawing in drawings():
        page.keyboard.press("Escape")
        draw(page, drawing.strokes)
        found.append((drawing.digit, shown_digit(page)))
    assert Counter(digit for digit, _ in found) == dict.fromkeys(range(10), 3)
    wrong = [pair for pair in found if str(pair[0]) != pair[1]]
    assert len(found) - len(wrong) >= LEAST_RECOGNIZED, wrong


def test_certainties_change_during_a_stroke(page: "Page") -> None:
    """The bars follow the pen before it is lifted, and add up to 1."""
    shares = (
        "[...document.querySelectorAll('#bars i')].map(bar => Number(bar.style.getPropertyValue('--share')))"
    )
    box = page.locator("#pad").bounding_box()
    assert box
    seen = list[list[float]]()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.2 * box["height"])
    page.mouse.down()
    for x, y in ((0.7, 0.2), (0.5, 0.8)):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=8)
        page.evaluate("() => new Promise(requestAnimationFrame)")
        seen.append(page.evaluate(shares))
    assert [sum(each) for each in seen] == pytest.approx([1, 1], abs=1e-4)
    assert seen[0] != seen[1]
    page.mouse.up()


def test_empty_canvas_has_a_hint_and_no_prediction(page: "Page") -> None:
    """So has a page whose drawing was cleared, or whose only stroke was undone."""

    def state() -> tuple[bool, str, str, list[str]]:
        settle(page)
        shares = "".join(page.locator("#bars span").all_inner_texts())
        pictures = [picture(page, name) for name in ("seen", "numbers", "decoded")]
        return page.locator("#hint").is_visible(), shown_digit(page), shares, pictures

    empty = state()
    assert empty[:3] == (True, "", "")
    for button in ("clear", "undo"):
        draw(page, drawings()[0].strokes)
        drawn = state()
        assert drawn[:2] == (False, "0")
        assert drawn[2]
        assert not set(drawn[3]) & set(empty[3])
        page.locator(f"#{button}").click()
        assert state() == empty
    assert page.locator("#undo").is_disabled()


def test_ctrl_z_undoes_the_last_stroke(page: "Page") -> None:
    """With Shift, it does nothing: it means redo."""
    for left in (0.3, 0.6):
        draw(page, [[(left, 0.3), (left, 0.7)]])
    page.keyboard.press("Control+Shift+Z")
    assert page.evaluate("page.pad.strokes.length") == 2
    page.keyboard.press("Control+Z")
    assert page.evaluate("page.pad.strokes.map(stroke => stroke[0][0].toFixed(1))") == ["0.3"]


def test_finger_draws_without_scrolling(browser: "Browser") -> None:
    size = {"width": NARROW, "height": 640}
    with opened(browser, shipped_site(), viewport=size, has_touch=True, is_mobile=True) as page:
        box = page.locator("#pad").bounding_box()
        assert box
        session = page.context.new_cdp_session(page)
        points = [
            (box["x"] + 0.5 * box["width"], box["y"] + share * box["height"])
            for share in (0.9, 0.7, 0.4, 0.1)
        ]
        for number, (x, y) in enumerate(points):
            kind = "touchMove" if number else "touchStart"
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y}]})
        session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        settle(page)
        assert shown_digit(page) == "1"
        assert page.evaluate("page.pad.strokes.length") == 1
        assert page.evaluate("scrollY") == 0


# --- sliders -------------------------------------------------------------------------------------


def test_sliders_change_the_decoded_digit(page: "Page") -> None:
    draw(page, drawings()[6].strokes)
    drawn = {name: picture(page, name) for name in ("seen", "numbers", "decoded")}
    sliders = page.locator("#sliders input")
    assert sliders.count() == 30
    before = drawn["decoded"]
    for number in (0, 17, 29):
        box = sliders.nth(number).bounding_box()
        assert box
        page.mouse.click(box["x"] + 3, box["y"] + box["height"] / 2)
        after = picture(page, "decoded")
        assert after != before
        before = after
    assert picture(page, "numbers") != drawn["numbers"]
    assert picture(page, "seen") == drawn["seen"]
    page.locator("#return").click()
    assert {name: picture(page, name) for name in drawn} == drawn
    assert page.locator("#return").is_disabled()


def test_sliders_change_the_digit_of_a_drawn_code(page: "Page") -> None:
    """The sliders decode what the network decodes: the code of a 3 at the sliders shows a 3."""
    for digit in (0, 3):
        page.keyboard.press(str(digit))
        settle(page)
        assert page.locator("#reads").inner_text().endswith(str(digit))


# --- loading -------------------------------------------------------------------------------------


def test_nothing_is_fetched_from_another_host(browser: "Browser") -> None:
    """All requests go to the page's server, and the policy blocks others."""
    reached = list[str]()

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reached.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer((HOST, 0), Other) as other, opened(browser, shipped_site()) as page:
        thread = Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        requests = list[str]()
        page.on("request", lambda request: requests.append(request.url))
        page.reload()
        page.wait_for_selector("body[data-ready=yes]")
        draw(page, drawings()[4].strokes)
        address = page.url
        assert {WEIGHTS, "page.js", "page.css"} <= {url.removeprefix(address) for url in requests}
        assert [url for url in requests if not url.startswith(address)] == []
        blocked = """
        async url => {
          const image = new Promise(done =>
            Object.assign(new Image(), { src: url + "image", onerror: () => done("no"), onload: done }));
          return [await fetch(url + "fetch").then(() => "yes", () => "no"), await image];
        }
        """
        assert page.evaluate(blocked, f"http://{HOST}:{other.server_port}/") == ["no", "no"]
        other.shutdown()
        thread.join()
    assert not reached


def test_static_copy_works_from_a_disk(browser: "Browser", tmp_path: Path) -> None:
    write_copy(shipped_site(), tmp_path)
    context = browser.new_context()
    page = context.new_page()
    requests = list[str]()
    page.on("request", lambda request: requests.append(request.url))
    page.goto((tmp_path / INDEX).as_uri())
    page.wait_for_selector("body[data-ready=yes]")
    draw(page, drawings()[0].strokes)
    assert shown_digit(page) == "0"
    assert page.locator("#strip .lane").count() == 3
    page.locator("#model a").click()
    assert "CC BY-SA 3.0" in page.locator("body").inner_text()
    assert all(url.startswith(tmp_path.as_uri()) for url in requests)
    context.close()


def test_damaged_model_is_reported(browser: "Browser") -> None:
    """The page shows what happened, also if another program served the files."""
    pages = shipped_site()
    flipped = bytearray(pages[WEIGHTS])
    flipped[5000] ^= 4
    for damaged in (
        {WEIGHTS: bytes(flipped)},
        {WEIGHTS: pages[WEIGHTS][:-8]},
        {"model.json": json.dumps({"format": 9}).encode()},
    ):
        with opened(browser, {**pages, **damaged}) as page:
            assert page.locator("body").get_attribute("data-ready") == "failed"
            assert page.locator("#problem").is_visible()
    missing = {name: content for name, content in pages.items() if name != WEIGHTS}
    with opened(browser, missing) as page:
        assert "404" in page.locator("#problem").inner_text()
