"""Every error has a code and fields for programs."""

import ast
import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from oddlot.core.sample_spans import Span
from oddlot.core.support.errors import (
    BadSamples,
    InvalidValue,
    OddlotError,
    UnknownName,
    UsageError,
    UsageErrors,
    joined,
)
from tests.transcripts import ERRORS, MESSAGES, TESTS, is_there, read, read_errors

SOURCE = Path(__file__).parent.parent / "src" / "oddlot"
CODED = {
    "UsageError",
    "JobError",
    "CheckpointError",
    "ProtocolError",
    "Rejection",
    "FrameError",
    "OddlotError",
}
"""Error classes with a code as their second argument."""


def uncoded(source: str) -> Iterator[int]:
    """Yield the line numbers of errors without a code."""
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in CODED:
            named = any(keyword.arg in {"code", None} for keyword in call.keywords)
            if len(call.args) < 2 and not named:
                yield call.lineno


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_error_has_a_code(path: Path) -> None:
    assert not [f"{path}:{line}" for line in uncoded(path.read_text())]


def test_error_without_a_code_is_found() -> None:
    assert [*uncoded("raise UsageError('a')\nraise UsageError('a', 'b')\nraise JobError('a', code='b')")] == [
        1
    ]


@pytest.mark.parametrize(
    "error",
    [
        UsageError("no", "a_code", "lr", given=3),
        UnknownName("strategy", "vcasgd", ["vc_asgd", "downpour"]),
        InvalidValue("lr", -1, "above 0"),
        UsageErrors([UsageError("one", "a"), UsageError("two", "b")]),
        BadSamples((Span(0, 1, 2),), "are bad"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_copied_and_pickled(error: OddlotError) -> None:
    for other in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is type(error)
        assert (str(other), other.code, str(other.fields)) == (str(error), error.code, str(error.fields))
    with_message = error.with_message("otherwise", line=3)
    assert (str(with_message), with_message.fields) == ("otherwise", {**error.fields, "line": 3})


def test_custom_error_has_default_code_and_fields() -> None:
    class Mine(UsageError):
        def __init__(self, count: int) -> None:
            self.count = count

    error = Mine(3)
    assert (error.code, error.fields) == ("usage", {})
    assert error.with_message("otherwise", line=3).fields == {"line": 3}


def test_unknown_name_suggests_the_nearest_name() -> None:
    error = UnknownName("strategy", "vcasgd", ["vc_asgd", "downpour"])
    assert error.fields == {"kind": "strategy", "given": "vcasgd", "nearest": "vc_asgd"}
    assert UnknownName("strategy", "zzz", ["vc_asgd"]).fields["nearest"] is None


def test_repeated_errors_are_joined_into_one() -> None:
    one, two = UsageError("one", "a"), UsageError("two", "b")
    assert joined([one, UsageError("one", "a")]).code == "a"
    both = joined([one, two, one])
    assert isinstance(both, UsageErrors)
    assert [error.code for error in both.errors] == ["a", "b"]


def test_few_tests_match_error_text() -> None:
    """Only texts of other libraries are matched. oddlot's own texts are in the transcripts."""
    calls = (call for path in TESTS.rglob("*.py") for call in ast.walk(ast.parse(path.read_text())))
    matched = [call for call in calls if isinstance(call, ast.keyword) and call.arg == "match"]
    assert len(matched) <= 60


def test_every_transcript_belongs_to_a_test() -> None:
    paths = [path for path in MESSAGES.glob("*.txt") if path != ERRORS]
    stale = [test for path in paths for test in read(path) if not is_there(test)]
    assert not stale, "pytest --rewrite takes them out"


def test_each_golden_code_is_in_the_source() -> None:
    assert read_errors(), "tests/messages/errors.txt has the sentences of all errors"
    source = "".join(
        path.read_text(encoding="utf-8") for path in [*SOURCE.rglob("*.py"), *TESTS.rglob("*.py")]
    )
    assert not [code for code in read_errors() if code.islower() and f'"{code}"' not in source]
