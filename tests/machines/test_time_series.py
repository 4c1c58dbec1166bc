"""Values that change in steps over time."""

from itertools import islice

from oddlot.machines import Steps

PRICES = Steps((0.0, 10.0, 25.0), (1.0, 3.0, 2.0))


def test_value_holds_until_the_next_change() -> None:
    assert [PRICES.at(second) for second in (0, 9.9, 10, 24, 25, 1e9)] == [1, 1, 3, 3, 2, 2]
    assert Steps((5.0,), (7.0,)).at(0.0) == 7.0, "before the first one too"
    assert list(PRICES.changes()) == [(10.0, 3.0), (25.0, 2.0)]
    assert list(PRICES.changes(10.0)) == [(25.0, 2.0)]


def test_periodic_series_has_no_end() -> None:
    over = PRICES.window(period_seconds=30.0)
    assert [over.at(second) for second in (29, 30, 41, 56)] == [2, 1, 3, 2]
    assert list(islice(over.changes(11.0), 4)) == [(25.0, 2.0), (30.0, 1.0), (40.0, 3.0), (55.0, 2.0)]
    assert next(over.changes(3_000_011.0)) == (3_000_025.0, 2.0)


def test_window_starts_at_zero_and_can_be_scaled() -> None:
    assert PRICES.window(12.0) == Steps((0.0, 13.0), (3.0, 2.0))
    assert PRICES.window(5.0, 10.0, faster=10.0) == Steps((0.0, 0.5), (1.0, 3.0), 1.0)
    assert PRICES.window(100.0) == Steps((0.0,), (2.0,))


def test_last_of_several_values_at_one_time_holds() -> None:
    rows = [(0.0, 0.0), (3.0, 0.0), (3.0, 4.0), (4.0, 4.0), (5.0, 1.0), (5.0, 4.0)]
    assert Steps.of(rows) == Steps((0.0, 3.0, 5.0), (0.0, 4.0, 4.0)), "known until the last one"


def test_values_and_changes_agree_across_periods() -> None:
    """Before the first time of a period, the series has its first value."""
    late = Steps((10.0, 20.0), (1.0, 2.0), 30.0)
    changes = list(islice(late.changes(), 3))
    assert changes == [(20.0, 2.0), (30.0, 1.0), (50.0, 2.0)]
    for time, value in changes:
        assert late.at(time) == value


def test_step_at_the_end_of_a_window_belongs_to_the_next_period() -> None:
    assert PRICES.window(0.0, 25.0) == Steps((0.0, 10.0), (1.0, 3.0), 25.0)
