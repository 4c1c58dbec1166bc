"""Tests of Python files given as a workload's name: the error has the right name, and the file does not run."""

from pathlib import Path
from typing import Any

import pytest

from oddlot.core.support.errors import UsageError
from oddlot.workloads.registry import check_workload
from tests.transcripts import raises

SCRIPT = """
import oddlot
raise RuntimeError("a script that is only named does not run")

def helper(x): pass

def _hidden(): return oddlot.Job(None, None)

def mine(): return oddlot.Job(None, None)
"""


@pytest.mark.parametrize(
    ("name", "code", "fields"),
    [
        ("script.py", "python_file_given", {"write": "script:mine", "functions": ["mine", "helper"]}),
        ("script", "python_file_given", {"write": "script:mine"}),
        ("./script.py:helper", "python_file_given", {"write": "script:helper"}),
        ("deep/script.py", "python_file_given", {"write": "deep.script:mine"}),
        ("broken.py", "python_file_given", {"write": "broken:FUNCTION", "functions": []}),
        ("absent.py", "missing_file", {"path": "absent.py"}),
    ],
)
def test_python_file_as_a_name_suggests_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, fields: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep").mkdir()
    for path, text in {"script.py": SCRIPT, "deep/script.py": SCRIPT, "broken.py": "def f(:"}.items():
        (tmp_path / path).write_text(text)
    with raises(UsageError, code, **fields):
        check_workload(name)
