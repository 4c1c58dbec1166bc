"""A run of a small network for digits, a browser, and the page in it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oddlot import Run
from oddlot.demo.site import shipped_site
from tests.browser import CHROMIUM
from tests.demo.networks import train, train_autoencoder
from tests.demo.pages import WIDE, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with a lost worker."""
    folder = tmp_path_factory.mktemp("digits")
    train(folder)
    return folder


@pytest.fixture(scope="session")
def autoencoder_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run of all stages of `digit_autoencoder`."""
    return train_autoencoder(tmp_path_factory.mktemp("autoencoder"))


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser: "Browser") -> "Iterator[Page]":
    """Return the page with the shipped model."""
    with opened(browser, shipped_site(), viewport={"width": WIDE, "height": 900}) as page:
        yield page
