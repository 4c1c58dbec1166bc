"""Criteria that end a stage: signs of inner products, a plateau of a metric, and the error."""

from collections.abc import Callable

import pytest

from oddlot.core.events import Changed, Evaluated, Event
from oddlot.core.support.errors import UsageError
from oddlot.strategies.support.stage_switching import ByError, ByGradients, ByPlateau, Switch
from tests.transcripts import raises

ENDS = (0.5, 0.1, 0.02)


def stages(switch: Switch, events: list[Event]) -> list[int]:
    now, found = 0, list[int]()
    for event in events:
        now = switch.stage(event, now, ENDS)
        found.append(now)
    return found


def losses(*values: float) -> list[Event]:
    return [Evaluated(version, {"loss": value, "rate": -value}) for version, value in enumerate(values)]


def test_opposing_gradients_end_a_stage_after_the_burn_in() -> None:
    switch = ByGradients(window=1, threshold=2, burn_in=4)
    events: list[Event] = [Changed(version, 1.0, -1.0) for version in range(12)]
    assert stages(switch, events) == [0] * 4 + [1] * 5 + [2] * 3
    assert stages(ByGradients(1, 0, 0), [Changed(1), *losses(1.0, 2.0, 3.0)]) == [0] * 4, (
        "of what was not measured"
    )


def test_plateau_ends_a_stage_after_patience_evaluations() -> None:
    falls = losses(3.0, 2.0, 2.5, 2.0, 1.9, 1.9, 1.9, 2.0, 2.0)
    assert stages(ByPlateau(patience=2), [Changed(0), *falls]) == [0, 0, 0, 0, 1, 1, 1, 2, 2, 3]
    assert stages(ByPlateau("rate", "min", patience=2), losses(1.0, 2.0, 3.0)) == [0, 0, 0], "which falls"


def test_plateau_of_a_maximized_metric_ends_a_stage() -> None:
    rises = losses(-1.0, -2.0, -1.5, -2.0, -2.1, -2.1)
    assert stages(ByPlateau("rate", "min", patience=2), rises)[-1] > 0
    values = (1.0, 2.0, 1.5, 2.0, 2.1, 2.1)
    for switch in (ByPlateau("accuracy", patience=2), ByPlateau("f1", "max", patience=2)):
        found = stages(switch, [Evaluated(at, {switch.metric: value}) for at, value in enumerate(values)])
        assert found == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: ByPlateau(mode="most"), "invalid_value"),
        (lambda: ByPlateau(mode=["max"]), "invalid_value"),  # type: ignore[arg-type]  # on purpose
        (lambda: ByPlateau("p1"), "missing_mode"),
        (lambda: ByPlateau("accuracy", "min"), "wrong_mode"),
        (lambda: ByPlateau(mode="max"), "wrong_mode"),
        (lambda: ByError(1.0, "accuracy"), "rising_metric"),
    ],
)
def test_wrong_metric_mode_is_rejected(make: Callable[[], Switch], code: str) -> None:
    with raises(UsageError, code):
        make()


def test_nan_is_not_an_improvement() -> None:
    nan = float("nan")
    assert stages(ByPlateau(patience=2), losses(1.0, nan, nan, 0.5)) == [0, 0, 1, 1]
    assert stages(ByPlateau(patience=2), losses(nan, 3.0, 2.0, 1.0, 0.5)) == [0] * 5, "nor a first one"


def test_error_selects_the_stage_and_stages_never_go_back() -> None:
    switch = ByError(a=2.0, lowest=1.0)
    assert stages(switch, losses(9.0, 2.01, 1.99, 1.1, 4.0, 1.0)) == [0, 0, 1, 2, 2, 3]


@pytest.mark.parametrize("switch", [ByPlateau("los", "min", patience=5), ByError(1.0, "los")])
def test_missing_metric_ends_no_stage(switch: Switch) -> None:
    assert stages(switch, losses(1.0)) == [0]
