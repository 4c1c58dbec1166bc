"""Docstrings of functions begin with a verb. Docstrings of properties may be noun phrases."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
VERBS = frozenset(
    re.findall(
        "[a-z]+",
        """
accept act add advance allocate alternate announce append apply ask assign audit authenticate average
avoid become begin block bring build call cancel carry change check choose clip close cluster collect commit compare
compile complete compute concatenate connect continue convert copy count create cut deal declare decode
decorate delay delete deliver discard do drain draw drop end enter estimate evaluate exclude execute
expect export fail fill filter find finish fit flush follow forget fork format free freeze generate
give handle hash have heed hold implement import increment initialize inject insert introduce join keep
kill know learn lease let list listen load lock log look lose make map mark measure merge move multiply
name note notify observe occupy open order pack parse pass pickle ping plan plot point poll predict
preempt prefetch prepare price print process prove put quantize query queue raise read receive record
reduce register release remove rename replace replay report request reset resume return round run save
schedule search seed send separate serve set shorten show simulate skip sleep slow solve sort split
start step stop submit suggest summarize suspect suspend sync take tell time track train turn unpack update
use validate wait warn wrap write yield
""",
    )
)
EXEMPT = ("src/oddlot/workloads/", "src/oddlot/testing/engine_check.py")
"""First lines of workloads are shown in `oddlot workloads`. Scenes of `check_engine` state conditions."""


def without_verb(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and first word of each function's docstring without a verb at its start."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = (ast.get_docstring(node) or "return").split()[0].strip(",.:;`").lower()
            decorators = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
            if first not in VERBS and not decorators & {
                "property",
                "cached_property",
                "fixture",
                "command()",
            }:
                yield node.lineno, first


@pytest.mark.parametrize("folder", ["src", "benchmarks", "examples", "tools"])
def test_docstring_of_function_begins_with_verb(folder: str) -> None:
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(EXEMPT):
            found += [
                f"{name}:{line} {word}" for line, word in without_verb(path.read_text(encoding="utf-8"))
            ]
    assert not found


def test_docstring_without_verb_is_found() -> None:
    source = (
        'def f():\n    """The rows."""\nclass A:\n    @property\n    def g(self):\n        """Its rows."""\n'
    )
    assert [*without_verb(source)] == [(1, "the")]
