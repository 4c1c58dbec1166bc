"""Tasks by name: the built-in ones, those of the user, and what a wrong name gets."""

import sys
from pathlib import Path
from typing import Any

import pytest

from oddlot.core.errors import JobError, UsageError
from oddlot.tasks import TASKS, check_task, load_task, options_of

MODULE = """\
import oddlot
from torch import nn

def good(width: int, rate: float = 0.1, name: str = "mine"):
    job = oddlot.Job(lambda: nn.Linear(width, 2), [1], loss=nn.functional.mse_loss, name=name)
    job.rate = rate
    return job

def free(**options):
    return good(**options)

def careless():
    raise ZeroDivisionError("in the user's own code")

def forgetful():
    pass

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tasks.py").write_text(MODULE)
    (tmp_path / "broken_tasks.py").write_text("1 / 0")
    (tmp_path / "needy_tasks.py").write_text("import a_module_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_tasks", raising=False)


@pytest.mark.parametrize("name", TASKS)
def test_every_built_in_task_has_options_with_defaults(name: str) -> None:
    options = options_of(name)
    assert "batch" in options
    assert all(option.default is not option.empty for option in options.values())


def test_a_task_of_the_user_s() -> None:
    job: Any = load_task("my_tasks:good", {"width": 3, "rate": 1})
    assert job.model().in_features == 3
    assert job.rate == 1
    assert job.name == "mine"
    assert load_task("my_tasks:free", {"width": 3}).name == "mine"


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        (
            "digitz",
            {},
            "unknown task `digitz`: did you mean `digits`? There are: cifar10, digits, fashion_mnist, mnist, xmc; or",
        ),
        ("digits", {"hiddn": 3}, "hiddn is no option of the task digits: did you mean `hidden`?"),
        ("digits", {"hidden": 2.0}, "hidden = 2.0: the task digits takes a value of type int"),
        ("digits", {"hidden": True}, "hidden = True: the task digits takes a value of type int"),
        ("my_tasks:good", {}, "width is missing: the task my_tasks:good needs this option"),
        (
            "my_tasks:good",
            {"width": 1, "rate": "x"},
            "rate = 'x': the task my_tasks:good takes a value of type float",
        ),
        (
            "my_tasks:god",
            {},
            "my_tasks has no function `god`: did you mean `good`? There are: careless, forgetful",
        ),
        ("my_tasks:forgetful", {}, "the task my_tasks:forgetful must return an oddlot.Job, not NoneType"),
        ("my_tasks:number", {}, "my_tasks has no function `number`"),
        ("my_task:good", {}, "there is no module my_task: is its folder in PYTHONPATH?"),
        ("my_tasks.deep:good", {}, "there is no module my_tasks.deep"),
        (":good", {}, "a task is a function as package.module:function, not `:good`"),
        ("my_tasks:", {}, "a task is a function as package.module:function, not `my_tasks:`"),
    ],
)
def test_a_wrong_name_or_option_is_told(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        load_task(name, options)
    assert str(refusal.value).startswith(sentence)


@pytest.mark.parametrize(
    ("name", "sentence", "cause"),
    [
        ("my_tasks:careless", "the task my_tasks:careless failed:", "in the user's own code"),
        ("broken_tasks:any", "importing broken_tasks failed:", "ZeroDivisionError"),
        ("needy_tasks:any", "importing needy_tasks failed:", "No module named 'a_module_that_is_not_there'"),
    ],
)
def test_the_user_s_own_faults_come_with_their_traceback(name: str, sentence: str, cause: str) -> None:
    with pytest.raises(JobError) as failure:
        load_task(name)
    assert str(failure.value).startswith(sentence)
    assert cause in str(failure.value)


def test_a_name_is_checked_without_importing_anything() -> None:
    check_task("any.module:function")
    with pytest.raises(UsageError, match="unknown task `job`"):
        check_task("job")
