"""Fixtures for tests of kernels and of the modules that call them."""

from collections.abc import Iterator

import pytest

from tests.sparse.layers import threads


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread. Other tests check that results do not depend on the number of threads."""
    with threads(1):
        yield
