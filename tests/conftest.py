"""Settings for all tests: how long Hypothesis searches, and whether stories are rewritten."""

import signal

import pytest
from hypothesis import settings

settings.register_profile("fast", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile("fast")  # pytest --hypothesis-profile=thorough searches longer
# A shell has its background jobs ignore Ctrl-C, and the tests' programs would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what comes out into tests/stories")
