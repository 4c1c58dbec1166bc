"""For tests of kernels and what calls them."""

from collections.abc import Iterator

import pytest

from tests.sparse.layers import threads


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For tests of what is the same on any number of threads, which other tests make sure of."""
    with threads(1):
        yield
