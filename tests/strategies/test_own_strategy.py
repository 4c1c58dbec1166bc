"""The example of a user-defined strategy passes `check_strategy`."""

from examples.own_strategy import DropStale
from oddlot.testing import check_strategy


def test_example_strategy_passes_check_strategy() -> None:
    check_strategy(DropStale, examples=50)
