"""Goals and intervals, parsed from text: when a run ends, and when a reminder is due."""

from typing import Any

import pytest

from oddlot.core.events import Joined
from oddlot.core.support.errors import UsageError
from oddlot.history.goals import Every, Goal, Reminder
from oddlot.history.metrics import Quality, Tally
from tests.transcripts import raises


def tally(versions: int = 0, **quality: Any) -> Tally:
    made = Tally(size=10, quality=Quality(**quality))
    made.notes.newest = versions
    return made


FIGURES = tally(versions=20, metrics={"accuracy": 0.9}, training_loss=0.3)
FIGURES.seconds, FIGURES.samples.merged, FIGURES.cost.dollars = 7.0, 25, 0.5


@pytest.mark.parametrize(
    ("text", "reached"),
    [
        ("seconds>=7", "seconds>=7"),
        ("seconds>7", ""),
        ("versions >= 20", "versions>=20"),
        ("epochs>=2.5", "epochs>=2.5"),
        ("epochs>=2.6", ""),
        ("epochs>=2", ""),  # epochs overlap: only the ledger knows whether two are complete
        ("samples>=25", "samples>=25"),
        ("dollars>=5e-1", "dollars>=0.5"),
        ("dollars<=0.5", "dollars<=0.5"),  # a budget
        ("dollars<0.6", ""),
        ("samples>=24.0000001", "samples>=24.0000001"),
        ("loss<=0.3", "loss<=0.3"),
        ("loss<0.3", ""),
        ("accuracy>=0.95 or seconds>=5", "seconds>=5"),
        ("accuracy>=0.95, dollars>1, accuracy>0.8", "accuracy>0.8"),
        ("f1>=0", ""),  # not measured yet
        ("loss>1e-05 or seconds>=7", "loss>1e-05"),
    ],
)
def test_reached_goal_returns_its_term(text: str, reached: str) -> None:
    assert str(Goal.parse(text, ["accuracy", "f1"]).reached(FIGURES) or "") == reached


def test_loss_goal_uses_the_evaluation_loss() -> None:
    goal = Goal.parse("loss<=0.5", evaluated=True)
    assert not goal.reached(tally(training_loss=0.3))
    assert not goal.reached(tally(training_loss=0.3, evaluated_version=4, metrics={"loss": 0.6}))
    assert not goal.reached(
        tally(training_loss=0.3, evaluated_version=4)
    )  # the evaluation loss was not finite
    assert goal.reached(tally(training_loss=0.6, evaluated_version=4, metrics={"loss": 0.3}))


@pytest.mark.parametrize(
    ("text", "epochs", "term"),
    [
        ("epochs>=3", 3, "epochs>=3"),
        ("epochs>=2.5", 3, "epochs>=2.5"),
        ("epochs>2", 3, "epochs>2"),
        ("epochs>2.5", 3, "epochs>2.5"),
        ("epochs>=9 or accuracy>=0.9 or epochs>=4", 4, "epochs>=4"),
        ("epochs<=3 or epochs>=5", 3, "epochs<=3"),  # a budget
        ("epochs>=12345678", 12345678, "epochs>=12345678"),
        ("accuracy>=0.9", None, ""),
    ],
)
def test_goal_limits_the_number_of_epochs(text: str, epochs: int | None, term: str) -> None:
    goal = Goal.parse(text, ["accuracy"])
    assert (goal.epochs, goal.by_epochs) == (epochs, term)


@pytest.mark.parametrize(
    ("text", "code", "fields"),
    [
        ("acuracy>=0.9", "unknown_name", {"given": "acuracy", "nearest": "accuracy"}),
        ("epoch>=3", "unknown_name", {"nearest": "epochs"}),
        ("days>=3", "unknown_name", {"given": "days"}),
        ("qqqqqq>=3", "unknown_name", {"nearest": None}),
        ("top-1>=0.9", "unknown_name", {"given": "top-1"}),
        ("accuracy", "invalid_goal", {"given": "accuracy"}),
        ("accuracy>=high", "invalid_goal", {}),
        ("loss<=1 or accuracy>=0.9 or", "invalid_goal", {"given": ""}),
        ("accuracy>=1.2.3", "invalid_goal", {}),
        ("epochs>=1e999", "invalid_goal", {}),
        ("", "invalid_goal", {}),
        ("epochs>=0", "goal_reached_at_start", {"figure": "epochs", "value": 0}),
        ("seconds<=-1", "goal_reached_at_start", {"figure": "seconds", "value": -1}),
        ("accuracy>=0.9 and epochs>=3", "and_in_goal", {}),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_invalid_goal_is_rejected(text: str, code: str, fields: dict[str, object]) -> None:
    with raises(UsageError, code, **fields) as error:
        Goal.parse(text, ["accuracy"])
    assert error.value.key == "until"


def test_reminder_is_due_once_per_interval() -> None:
    reminder = Reminder(Every.parse("10 versions"))
    due = [versions for versions in range(1, 45) if reminder.due(tally(versions=versions))]
    assert due == [10, 20, 30, 40]
    assert reminder.due(tally(versions=75))  # several missed intervals count as one
    assert not reminder.due(tally(versions=79))


@pytest.mark.parametrize(
    ("text", "count", "shown"),
    [
        ("0.5 epochs", 0.5, "0.5 epochs"),
        ("1 epochs", 1, "1 epoch"),
        (" 3 second ", 3, "3 seconds"),
        (".5 epochs", 0.5, "0.5 epochs"),
    ],
)
def test_interval_is_a_number_and_a_unit(text: str, count: float, shown: str) -> None:
    every = Every.parse(text)
    assert (every.count, str(every)) == (count, shown)
    assert Every.parse(shown) == every


@pytest.mark.parametrize(
    "text", ["5", 5, "epochs", "0 epochs", "-1 epochs", "1.2.3 epochs", ". epochs", "2 days"]
)
def test_invalid_intervals_are_rejected(text: object) -> None:
    with raises(UsageError, "invalid_value", name="evaluate_every", given=text):
        Every.parse(text, "evaluate_every")


@pytest.mark.parametrize("compare", [">=", "<=", "<"])
def test_time_and_cost_goals_have_a_due_time(compare: str) -> None:
    tally = Tally()
    tally.cost.joined(Joined("a", 36.0))
    assert Goal.parse(f"seconds{compare}100").due(tally) == pytest.approx(100.0)
    assert Goal.parse(f"hours{compare}1").due(tally) == pytest.approx(3600.0)
    assert Goal.parse(f"dollars{compare}0.5").due(tally) == pytest.approx(50.0)
