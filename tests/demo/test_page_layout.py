"""The page in Chromium: its layout, its colors, and its use with keys alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oddlot import Run
from oddlot.demo.run_site import run_site
from oddlot.demo.site import shipped_site
from tests.browser import needs_chromium
from tests.demo.pages import NARROW, WIDE, opened, picture, settle, shown_digit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_chromium
CUT = """
() => [...document.body.querySelectorAll("*")].filter(each => {
  const box = each.getBoundingClientRect();
  return box.width > 0 && (box.left < -1 || box.right > document.documentElement.clientWidth + 1);
}).map(each => `${each.tagName} ${each.id} ${each.textContent.slice(0, 30)}`)
"""
"""Elements that are cut off at a side."""
FAINT = """
() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const luminance = rgb => rgb.slice(0, 3).map(value => value / 255)
    .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = each => {
    for (; each; each = each.parentElement) {
      const color = parse(getComputedStyle(each).backgroundColor);
      if (color[3] !== 0) return color;
    }
    return [255, 255, 255];
  };
  const shown = [...document.body.querySelectorAll("*")].filter(each =>
    each.getClientRects().length && !each.disabled && !each.closest(".empty #digit")
    && [...each.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()));
  return shown.map(each => {
    const [one, other] = [luminance(parse(getComputedStyle(each).color)), luminance(behind(each))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    return [ratio, `${ratio.toFixed(2)} ${each.tagName} ${each.id} ${each.textContent.slice(0, 30)}`];
  }).filter(([ratio]) => ratio < 4.5).map(([, name]) => name);
}
"""
"""Texts with a contrast below 4.5, the limit of WCAG AA."""
REPAINTED = """
() => new Promise(done => {
  const style = getComputedStyle(document.documentElement);
  const look = frames => {
    if (color("--ink") === style.getPropertyValue("--ink").trim() || !frames) done();
    else requestAnimationFrame(() => look(frames - 1));
  };
  look(100);
})
"""
"""Waits, for at most 100 frames, until the pictures have the colors of the style sheet."""
FOCUSED = """
() => {
  const each = document.activeElement, marked = [each, each.closest("label")].filter(Boolean);
  const isMarked = marked.some(one => {
    const { outlineStyle, outlineWidth } = getComputedStyle(one);
    return outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
  });
  return [each.id || each.ariaLabel || each.tagName, isMarked];
}
"""
"""The focused element, and whether its outline is visible."""


# --- keyboard ------------------------------------------------------------------------------------


def test_all_controls_are_used_by_keyboard(page: "Page") -> None:
    """Tab reaches every control, and each has a visible focus. The controls work with keys alone."""
    page.keyboard.press("7")
    settle(page)
    assert shown_digit(page) == "7"
    page.locator("#sliders input").first.focus()
    page.keyboard.press("ArrowRight")
    page.locator("h1").click()
    names, marked = [], []
    for _ in range(60):
        page.keyboard.press("Tab")
        name, is_marked = page.evaluate(FOCUSED)
        if name == "BODY":
            break
        names.append(name)
        marked.append(is_marked)
    examples = [f"Example {digit}" for digit in range(10)]
    sliders = [f"Number {number} of the code" for number in range(1, 31)]
    assert names == ["pad", "clear", "undo", *examples, "return", *sliders, "SUMMARY", "A"]
    assert all(marked)
    page.locator("#return").focus()
    page.keyboard.press("Enter")
    assert page.locator("#return").is_disabled()
    page.get_by_label("Example 4").focus()
    page.keyboard.press("Enter")
    settle(page)
    assert shown_digit(page) == "4"
    for key in ("Escape", "Delete"):
        page.keyboard.press("2")
        page.keyboard.press(key)
        settle(page)
        assert shown_digit(page) == ""


def test_slider_is_moved_by_arrow_keys(page: "Page") -> None:
    page.keyboard.press("5")
    settle(page)
    slider, decoded = page.locator("#sliders input").nth(3), picture(page, "decoded")
    slider.focus()
    values = [float(slider.input_value())]
    for key in ("ArrowRight", "ArrowUp", "PageUp", "End", "ArrowLeft", "Home"):
        page.keyboard.press(key)
        values.append(float(slider.input_value()))
    assert values[:5] == sorted(set(values[:5]))
    assert values[4] == -values[6] > values[5] > values[6]
    assert picture(page, "decoded") != decoded
    assert shown_digit(page) == "5", "a slider does not change the drawing"


def test_pen_is_moved_by_keys(page: "Page") -> None:
    """A stroke downwards reads as 1. A second lowering of the pen starts another stroke."""
    page.locator("#pad").focus()
    page.keyboard.press("Space")
    for _ in range(14):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")
    settle(page)
    assert shown_digit(page) == "1"
    assert page.evaluate("page.pad.strokes.map(stroke => stroke.length)") == [15]


# --- layout --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, 700, 1000, WIDE])
def test_page_fits_and_has_contrast(browser: "Browser", width: int, scheme: Any) -> None:
    size = {"width": width, "height": 800}
    with opened(browser, shipped_site(), viewport=size, color_scheme=scheme) as page:
        for key in ("Escape", "8"):
            page.keyboard.press(key)
            settle(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert not page.evaluate(CUT)
            assert not page.evaluate(FAINT)
        page.locator("summary").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        pad = page.locator("#pad").bounding_box()
        assert pad
        assert pad["width"] == pytest.approx(pad["height"])
        bars = page.locator("#bars").bounding_box()
        assert bars
        assert bars["y"] + bars["height"] <= 800, "the bars are visible while one draws"


def test_pictures_follow_the_color_scheme(page: "Page") -> None:
    page.keyboard.press("9")
    settle(page)
    names = ("pad", "seen", "numbers", "decoded")
    light = {name: picture(page, name) for name in names}
    page.emulate_media(color_scheme="dark")
    page.evaluate(REPAINTED)
    assert not [name for name in names if picture(page, name) == light[name]]
    page.emulate_media(color_scheme="light")
    page.evaluate(REPAINTED)
    assert {name: picture(page, name) for name in names} == light


def test_strip_shows_lanes_and_lost_parts(browser: "Browser", digits_run: Path) -> None:
    """The page of a run has a lane for each of its machines."""
    with opened(browser, run_site(str(digits_run), int8=False)) as page:
        assert page.locator("#strip .lane b").all_inner_texts() == ["a", "b", "c"]
        assert page.locator("#strip .lane .cross").count() == 1
        assert page.locator("#strip rect.wasted").count() >= 1
        assert page.locator("#lost-parts li").count() == 1
        assert page.locator("#legend-wasted").is_visible()
        assert page.locator("#legend-cross").is_visible()
        assert "784-40-30-40-784" in page.locator("#model").inner_text()


def test_strip_marks_the_stages(browser: "Browser", autoencoder_run: Run) -> None:
    """Names of short stages are cut off. Without losses, the legend has none."""
    pages = run_site(str(autoencoder_run.folder), int8=False)
    with opened(browser, pages, viewport={"width": NARROW, "height": 800}) as page:
        stages = ["layer 1 start", "layer 2 start", "autoencoder", "classifier"]
        assert page.locator("#strip .stages span").all_text_contents() == stages
        assert page.locator("#strip .lane .start").count() == 3
        marks = page.locator("#strip .stages span").nth(3), page.locator("#strip .start").nth(2)
        boxes = [mark.bounding_box() for mark in marks]
        assert boxes[0]
        assert boxes[1]
        assert boxes[0]["x"] == pytest.approx(boxes[1]["x"], abs=1.5)
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW
        assert page.locator("#legend-wasted, #legend-cross").evaluate_all(
            "all => all.map(one => one.hidden)"
        ) == [True, True]


def test_classifier_without_test_accuracy_has_a_note(
    page: "Page", browser: "Browser", digits_run: Path
) -> None:
    assert page.locator("#untested").is_hidden()
    with opened(browser, run_site(str(digits_run), int8=False)) as other:
        assert other.locator("#untested").is_visible()
