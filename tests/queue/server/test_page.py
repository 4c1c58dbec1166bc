"""The page of a queue in Chromium."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser import CHROMIUM, needs_chromium
from tests.queue.server.queue_servers import Server, queue_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = needs_chromium
NARROW, WIDE = 360, 1400


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ["--cpus", "2", "--gpus", "2", "--grace", "1"]
    with queue_server(tmp_path_factory.mktemp("page") / "queue", options) as server:
        yield server


@pytest.fixture
def page(browser: "Browser") -> "Iterator[Page]":
    """Return a page. Fail if a script of it raises."""
    errors = list[object]()
    context = browser.new_context(viewport={"width": WIDE, "height": 900})
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(error))  # noqa: PLW0108 - it sets an attribute
    yield page
    context.close()
    assert not errors


def opened(page: "Page", server: Server) -> None:
    page.goto(f"{server.client.url}/#{server.client.token}")
    page.wait_for_selector("body[data-ready=queue]")


def test_page_follows_a_job_to_its_end(page: "Page", server: Server, tmp_path: Path) -> None:
    opened(page, server)
    assert server.client.token not in page.url
    script = f"echo '<b>one</b>'; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    job = server.submit("sh", "-c", script, name="<i>job</i>", gpus=1)
    row = page.locator(f"#jobs tr[data-job='{job}']")
    row.get_by_text("running").wait_for()
    assert "<i>job</i>" in row.inner_text()
    assert "1 of 2" in page.locator("#machine-list").inner_text()
    row.get_by_role("link").click()
    page.get_by_text("<b>one</b>", exact=True).wait_for()
    page.locator("#close").click()
    (tmp_path / "go").touch()
    page.locator(f"#ended tr[data-job='{job}']").get_by_text("finished").wait_for()
    assert row.count() == 0


def test_job_is_cancelled_from_the_page(page: "Page", server: Server) -> None:
    opened(page, server)
    job = server.submit("sleep", "600")
    page.locator(f"#jobs tr[data-job='{job}'] a").click()
    page.locator("#cancel").click()
    assert server.wait(job)["state"] == "cancelled"


def test_job_has_an_address(page: "Page", server: Server) -> None:
    first, second = (server.submit("sh", "-c", f"echo {word}") for word in ("one", "two"))
    server.wait(second)
    page.goto(f"{server.client.url}/#job={first}")
    page.wait_for_selector("body[data-ready=login]")
    page.locator("#token").fill(server.client.token)
    page.locator("#login button").click()
    page.get_by_text("one", exact=True).wait_for()
    page.locator("#close").click()
    page.locator(f"#ended tr[data-job='{second}'] a").click()
    page.get_by_text("two", exact=True).wait_for()
    assert page.url.endswith(f"#job={second}")
    page.go_back()
    page.locator("#job").wait_for(state="hidden")
    page.go_back()
    page.get_by_text("one", exact=True).wait_for()
    page.goto(f"{server.client.url}/#job=999999")
    page.locator("#job-problem").wait_for()


def test_long_output_is_marked_and_hidden_output_is_not_called_empty(page: "Page", server: Server) -> None:
    job = server.submit("sh", "-c", "head -c 60000 /dev/zero | tr '\\0' x; exit 7")
    server.wait(job)
    opened(page, server)
    assert "7" in page.locator(f"#ended tr[data-job='{job}']").inner_text().split()
    page.locator(f"#ended tr[data-job='{job}'] a").click()
    page.locator("#cut").get_by_text("10,000").wait_for()
    page.locator("#close").click()

    def as_another_user(route: "Route") -> None:
        reply = route.fetch()
        hidden = {
            name: value for name, value in reply.json().items() if name not in {"command", "env", "cwd"}
        }
        route.fulfill(response=reply, json=hidden | {"user": "ada"})

    page.route(f"**/api/jobs/{job}", as_another_user)
    page.locator(f"#ended tr[data-job='{job}'] a").click()
    page.get_by_text("ada", exact=True).wait_for()
    assert "ada" in page.locator("#output").get_attribute("data-missing")  # type: ignore[operator]


def test_page_asks_for_a_token_and_keeps_it_for_its_tab(page: "Page", server: Server) -> None:
    page.goto(server.client.url)
    page.wait_for_selector("body[data-ready=login]")
    page.locator("#token").fill("w\u0142\u00f3\u017c")  # no header can contain it
    page.locator("#login button").click()
    page.locator("#problem").get_by_text("does not accept").wait_for(timeout=9000)
    page.locator("#token").fill("wrong")
    with page.expect_response("**/api/queue*") as reply:
        page.locator("#login button").click()
    assert reply.value.status == 401
    assert page.locator("main").is_hidden()
    page.locator("#token").fill(server.client.token)
    page.locator("#login button").click()
    page.wait_for_selector("body[data-ready=queue]")
    page.reload()
    page.wait_for_selector("body[data-ready=queue]")


def test_page_reports_a_killed_server_and_recovers(page: "Page", tmp_path: Path) -> None:
    with queue_server(tmp_path / "queue") as server:
        opened(page, server)
        port = server.client.url.rpartition(":")[2]
        server.kill()
        page.locator("#problem").wait_for()
        server.options = (*server.options, "--port", port)
        server.start()
        page.locator("#problem").wait_for(state="hidden")


def test_page_fits_from_phone_to_desktop_in_both_modes(page: "Page", server: Server) -> None:
    jobs = [
        server.submit("sleep", "600", cpus=2, name="x" * 200, virtual_cluster="y" * 200) for _ in range(3)
    ]
    opened(page, server)
    page.locator(f"#jobs tr[data-job='{jobs[-1]}']").wait_for()
    colors = set()
    for mode in ("light", "dark"):
        page.emulate_media(color_scheme=mode)
        colors.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        for width in (NARROW, 480, 820, 821, 1024, WIDE):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert len(colors) == 2
    for job in jobs:
        server.client.post(f"/api/jobs/{job}/cancel", {})
