"""Pictures of the site, from one simulated run on spot machines: `python docs/pictures.py`.

It writes docs/plots/fleet_timeline.svg, live_view.svg, report_page.png and digits_page.png. The pages need Chromium.
`python docs/pictures.py digits` writes only the last one, with Playwright.
"""

import platform
import re
import shutil
import subprocess
import sys
from html import escape
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from rich.console import Console

from oddlot.demo.site import INDEX, shipped_site, write_copy
from oddlot.history.metrics import Tally
from oddlot.report.live_view import Picture
from oddlot.report.page_style import STATES
from oddlot.report.run_report import RunReport
from oddlot.report.svg_charts import LEFT, RIGHT, WIDTH, lanes
from oddlot.report.timeline import RunTimeline

PLOTS = Path(__file__).parent / "plots"
FLEET = """
[[machines]]
name = "spot"
count = 7
seconds_per_sample = 0.5
delay = { kind = "lognormal", cv = 0.3 }
lifetime = { kind = "exponential", mean_seconds = 600 }
seconds_to_start = 30
seconds_to_return = 90
noticed_after_seconds = 10
dollars_per_hour = 0.16

[[machines]]
name = "old"
seconds_per_sample = 1.5
delay = { kind = "lognormal", cv = 0.3 }
dollars_per_hour = 0.10

[hub]
dollars_per_hour = 0.05
"""
RUN = "simulate digits --machines fleet.toml --strategy asynchronous"
RUN += " --epochs 12 --seed 3 --out runs/spot --quiet"
STYLE = "text{font:12px sans-serif;fill:#334155}.grid{stroke:#e2e8f0}"
STYLE += "".join(f".{state}{{fill:{color}}}" for state, color in STATES.items())
PAGE_WIDTH, PAGE_HEIGHT = 960, 1200
"""Of the screenshot, in pixels."""


DIGITS_WIDTH, DIGITS_HEIGHT = 1280, 1082
DRAWN = "8"
"""Key of the example that is drawn on the page."""


def main() -> None:
    """Simulate the run in an empty folder, and draw it. Draw the page of `oddlot demo digits`."""
    (PLOTS / "digits_page.png").write_bytes(digits_page())
    if sys.argv[1:] == ["digits"]:
        return
    with TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "fleet.toml").write_text(FLEET)
        oddlot(RUN, here)
        oddlot("report runs/spot --html report.html", here)
        run = RunReport.read(str(here / "runs" / "spot"))
        (PLOTS / "fleet_timeline.svg").write_text(timeline(run))
        (PLOTS / "live_view.svg").write_text(live_view(run))
        (PLOTS / "report_page.png").write_bytes(screenshot(here / "report.html"))


def oddlot(command: str, folder: Path) -> None:
    """Run a command of oddlot in a folder."""
    subprocess.run([sys.executable, "-m", "oddlot", *command.split()], cwd=folder, check=True)


def timeline(run: RunReport) -> str:
    """Return the machines' timeline as an SVG file."""
    course = RunTimeline.of(run.records, run.tally.size, run.tally.seconds)
    rows = {name: lane.spells for name, lane in sorted(course.by_machine.items())}
    figure = lanes("", rows, {}, course.seconds)
    found = re.search(r'<svg class="plot"[^>]* height="(\d+)"[^>]*>(.*)</svg>', figure)
    assert found
    height, inner = int(found[1]), found[2]
    legend, x = "", float(LEFT)
    for state, color in STATES.items():
        if any(spells.get(state) for spells in rows.values()):
            legend += f'<rect x="{x}" y="8" width="12" height="10" fill="{color}"/>'
            legend += f'<text x="{x + 17}" y="17">{escape(state)}</text>'
            x += 90
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + 24}"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{legend}'
        f'<svg x="{LEFT}" y="24" width="{WIDTH - LEFT - RIGHT}" height="{height}" overflow="visible">{inner}</svg>'
        "</svg>\n"
    )


def live_view(run: RunReport) -> str:
    """Return the live view in the middle of the run, as an SVG file without fonts from a network."""
    tally = Tally(run.tally.size)
    for record in run.records[: len(run.records) // 2]:
        tally(record)
    console = Console(record=True, width=72, file=StringIO())
    console.print(Picture("digits with asynchronous", tally).draw(tally.seconds))
    svg = console.export_svg(title="oddlot", unique_id="live")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def chromium() -> str:
    """Return the path of Chromium. Exit with a message if it is not installed."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("pictures.py needs Chromium for the pages: install chromium")
    return browser


def screenshot(page: Path) -> bytes:
    """Return the top of the report page as a PNG file."""
    page.write_text(page.read_text().replace(platform.node().partition(".")[0], "laptop"))
    shot = page.with_suffix(".png")
    size = f"--window-size={PAGE_WIDTH},{PAGE_HEIGHT}"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", size]
    subprocess.run(
        [chromium(), *options, f"--screenshot={shot}", page.as_uri()], check=True, capture_output=True
    )
    return small_png(shot.read_bytes())


def digits_page() -> bytes:
    """Return the page of `oddlot demo digits` as a PNG file, from a static copy."""
    from playwright.sync_api import sync_playwright

    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        write_copy(shipped_site(), Path(folder))
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": DIGITS_WIDTH, "height": DIGITS_HEIGHT})
        page.goto((Path(folder) / INDEX).as_uri())
        page.wait_for_selector("body[data-ready=yes]")
        page.keyboard.press(DRAWN)
        page.wait_for_selector(f"#digit:text-is('{DRAWN}')")
        page.locator("#bars .best i").evaluate(
            "bar => Promise.all(bar.getAnimations().map(each => each.finished))"
        )
        shot = page.screenshot()
        browser.close()
    return small_png(shot)


def small_png(shot: bytes) -> bytes:
    """Return a screenshot with 256 colors, which cover rare colors too."""
    out = BytesIO()
    picture = Image.open(BytesIO(shot)).convert("RGB")
    picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        out, "png", optimize=True
    )
    return out.getvalue()


if __name__ == "__main__":
    main()
