"""Tests of workloads by name: built-in workloads, users' workloads, and errors for wrong names."""

import sys
from pathlib import Path
from typing import Any

import pytest

from oddlot.core.support.errors import JobError, UsageError
from oddlot.workloads.registry import WORKLOADS, check_workload, load_workload, options_of
from tests.transcripts import mask, raises

MODULE = """\
import oddlot
from torch import nn

def good(width: int, rate: float = 0.1, name: str = "mine", title: str = ""):
    job = oddlot.Job(lambda: nn.Linear(width, 2), [1], loss=nn.functional.mse_loss, name=name)
    job.rate, job.title = rate, title
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
    (tmp_path / "my_jobs.py").write_text(MODULE)
    (tmp_path / "broken_jobs.py").write_text("1 / 0")
    (tmp_path / "needy_jobs.py").write_text("import a_module_that_is_not_there")
    (tmp_path / "eager_jobs.py").write_text("import oddlot\noddlot.fit(None, 'synchronous')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_jobs", raising=False)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_built_in_workload_has_options_with_defaults(name: str) -> None:
    options = options_of(name)
    assert "batch_size" in options
    assert all(option.default is not option.empty for option in options.values())


def test_custom_workload_is_loaded() -> None:
    job: Any = load_workload("my_jobs:good", {"width": 3, "rate": 1})
    assert job.model().in_features == 3
    assert job.rate == 1
    assert job.name == "mine"
    assert load_workload("my_jobs:free", {"width": 3}).name == "mine"
    assert load_workload("my_jobs:good", {"width": 3, "title": 8}).title == "8"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "options", "code", "key", "fields"),
    [
        ("digitz", {}, "unknown_name", "", {"kind": "workload", "nearest": "digits"}),
        ("job", {}, "unknown_name", "", {"kind": "workload", "nearest": None}),
        ("digits", {"hiddn": 3}, "unknown_name", "hiddn", {"kind": "option", "nearest": "hidden"}),
        ("digits", {"hidden": 2.0}, "invalid_value", "hidden", {"given": 2.0}),
        ("digits", {"hidden": True}, "invalid_value", "hidden", {"given": True}),
        ("my_jobs:good", {}, "missing_option", "width", {"workload": "my_jobs:good"}),
        ("my_jobs:good", {"width": 1, "rate": "x"}, "invalid_value", "rate", {"given": "x"}),
        ("my_jobs:god", {}, "unknown_name", "", {"kind": "function", "nearest": "good"}),
        ("my_jobs:number", {}, "unknown_name", "", {"kind": "function", "given": "number"}),
        ("my_jobs:forgetful", {}, "workload_returns_no_job", "", {"given": "NoneType"}),
        ("my_job:good", {}, "missing_module", "", {"module": "my_job"}),
        ("my_jobs.deep:good", {}, "missing_module", "", {"module": "my_jobs.deep"}),
        (":good", {}, "invalid_workload_name", "", {}),
        ("my_jobs:", {}, "invalid_workload_name", "", {}),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, dict) else part,
)
def test_wrong_name_or_option_is_rejected(
    name: str, options: dict[str, Any], code: str, key: str, fields: dict[str, Any]
) -> None:
    with raises(UsageError, code, **fields) as rejection:
        load_workload(name, options)
    assert rejection.value.key == key


@pytest.mark.parametrize("beside", [True, False])
def test_module_shadowed_by_a_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    mask(library=r"[^ ]*/json/__init__.py")
    if beside:
        (tmp_path / "json.py").touch()
    with raises(UsageError, "unknown_name", kind="function", module="json", hides=beside):
        load_workload("json:small")


@pytest.mark.parametrize(
    ("name", "where", "cause"),
    [
        ("my_jobs:careless", "the workload my_jobs:careless", "in the user's own code"),
        ("broken_jobs:any", "importing broken_jobs", "ZeroDivisionError"),
        ("needy_jobs:any", "importing needy_jobs", "a_module_that_is_not_there"),
    ],
)
def test_user_error_has_its_traceback(name: str, where: str, cause: str) -> None:
    with raises(JobError, "user_code_failed", where=where) as failure:
        load_workload(name)
    assert cause in failure.fields["reason"]


def test_module_that_calls_fit_on_import_is_rejected() -> None:
    with raises(UsageError, "fit_during_import", module="eager_jobs", line=2):
        load_workload("eager_jobs:any")


def test_name_check_imports_nothing() -> None:
    check_workload("any.module:function")
