"""The browser of the tests: Chromium of the system, if it is installed."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
"""Path of Chromium, or None."""
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
