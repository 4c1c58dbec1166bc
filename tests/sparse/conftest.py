"""For tests of kernels and what calls them."""

from collections.abc import Iterator

import pytest

from tests.sparse.layers import threads


def pytest_itemcollected(item: pytest.Item) -> None:
    """Whichever comes first may wait until kernels are compiled."""
    item.add_marker(pytest.mark.timeout(300))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For tests of what is the same on any number of threads, which other tests make sure of."""
    with threads(1):
        yield
