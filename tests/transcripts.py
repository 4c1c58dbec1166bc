"""Errors and warnings are asserted by their code and fields. Their texts, and others that people read, stand in
tests/messages, by the test in which they came up: `pytest --rewrite` writes what comes out, to be read before it is
committed.

What is not ours is left out of them: a field `reason` (what another library or the system said), addresses, and the
folders in which tests run.
"""

import difflib
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
MESSAGES = TESTS / "messages"
LEFT_OUT = {
    re.escape(f"{TESTS.parent}/"): "",
    r"[^\s'\"]*/pytest-of-[^/]+/pytest-\d+(/popen-gw\d+)?/[^/\s'\",:;)]+": "TMP",
    r" at 0x[0-9a-f]+": " at 0x...",
    r"\b\d{8,}-\d+-[0-9a-f]{6}\b": "CHECKPOINT",
    r"\b\d+-\d+-[0-9a-f]{6}(?=\.jsonl)": "PART",
    r"\bprocess \d+ on [^\s:]+": "process PID on HOST",
}
_text: list[str] = []
"""by the test that runs"""
_masks: dict[str, str] = {}
"""of all of its texts"""


@dataclass
class Caught:
    """What `raises` and `warns` have found, once they have."""

    value: Any = None
    all: list[Any] = field(default_factory=list)

    @property
    def fields(self) -> dict[str, Any]:
        """Those of the error, or of the first warning."""
        fields: dict[str, Any] = self.value.fields
        return fields


@contextmanager
def raises(kind: type[BaseException], code: str = "", /, **fields: Any) -> Iterator[Caught]:
    """What happens inside raises an error of this kind, with this code (those that no user sees have none) and, among
    others, these fields."""
    caught = Caught()
    with pytest.raises(kind) as info:
        yield caught
    caught.value, caught.all = info.value, [info.value]
    check(info.value, code, **fields)


@contextmanager
def warns(code: str, /, **fields: Any) -> Iterator[Caught]:
    """What happens inside warns with this code and, among others, these fields. Other warnings go on."""
    caught = Caught()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield caught
    for each in found:
        if getattr(each.message, "code", None) == code:
            caught.all.append(each.message)
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    assert caught.all, f"no warning {code} among {[str(each.message) for each in found]}"
    caught.value = caught.all[0]
    for warning in sorted(caught.all, key=str):  # threads and processes warn in any order
        check(warning, code, **fields)


def check(error: Any, code: str, /, **fields: Any) -> None:
    """The error has this code and, among others, these fields. Its text goes into the transcript."""
    has = getattr(error, "code", ""), getattr(error, "fields", {})
    assert has[0] == code, f"{has[0]} {has[1]}: {error}"
    assert {**has[1], **fields} == has[1], f"{has[1]}: {error}"
    transcribe(f"{code or type(error).__name__}: {text_of(error)}")


def text_of(error: Any) -> str:
    """Its sentence, without what is not ours."""
    text = str(error)
    for each in getattr(error, "errors", (error,)):
        reason = getattr(each, "fields", {}).get("reason")
        text = text.replace(str(reason), "<reason>") if reason else text
    return text


def mask(**masks: str) -> None:
    """In all texts that the test tells from now on, those of errors too: as `transcribe` does in one."""
    _masks.update(masks)


def transcribe(text: str, **masks: str) -> None:
    """Hold a text that people read against the test's transcript. Where it varies it is masked: `pid=r"\\d+"` has
    `<pid>` in place of the expression."""
    for name, expression in {**_masks, **masks}.items():
        text = re.sub(expression, f"<{name}>", text)
    for expression, instead in LEFT_OUT.items():
        text = re.sub(expression, instead, text)
    if text not in _text:
        _text.append(text)


class Transcript:
    """Of one test: what it has told, and the block of a file in tests/messages that it is held against."""

    def __init__(self, test: str) -> None:
        self.test = test.removeprefix("tests/")
        _text.clear()
        _masks.clear()

    @property
    def block(self) -> str:
        """What was told."""
        lines = [line.rstrip() for text in _text for line in text.splitlines() or [""]]
        return textwrap.indent("\n".join(lines), "    ").rstrip("\n")

    def compare(self) -> None:
        """AssertionError: something else was told than the file has."""
        before = read(file_of(self.test)).get(self.test, "")
        if self.block != before:
            difference = difflib.unified_diff(before.splitlines(), self.block.splitlines(), lineterm="")
            message = "\n".join(
                [*list(difference)[2:], f"pytest --rewrite 'tests/{self.test}' writes what came out"]
            )
            raise AssertionError(f"{file_of(self.test)} has another text of {self.test}:\n{message}")


def file_of(test: str) -> Path:
    """Where a test's block stands: a file for each folder of tests, and for each module beside them."""
    path = Path(test.partition("::")[0])
    name = path.parts[0] if len(path.parts) > 1 else path.stem.removeprefix("test_")
    return MESSAGES / f"{name}.txt"


_files: dict[Path, dict[str, str]] = {}


def read(path: Path) -> dict[str, str]:
    """The blocks of a file, by test."""
    if path not in _files:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        blocks = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
        heads = [block.partition("\n") for block in blocks if block.strip()]
        _files[path] = {head: body.rstrip("\n") for head, _, body in heads}
    return _files[path]


def rewrite(message: Mapping[str, str], collected: set[str]) -> None:
    """Write the blocks of these tests. Those of tests that are no more go: not in `collected`, though their function
    is, or of a function that no file has."""
    functions = {test.partition("[")[0] for test in collected}
    for path in {*map(file_of, message), *MESSAGES.glob("*.txt")}:
        before = read(path)
        after = {test: block for test, block in before.items() if is_there(test)}
        after = {t: b for t, b in after.items() if t in collected or t.partition("[")[0] not in functions}
        after |= {test: block for test, block in message.items() if file_of(test) == path}
        after = {test: block for test, block in sorted(after.items()) if block}
        if after != before:
            path.parent.mkdir(exist_ok=True)
            path.write_text(
                "\n".join(f"{test}\n{block}\n" for test, block in after.items()), encoding="utf-8"
            )


def is_there(test: str) -> bool:
    """Whether its function is in its file."""
    name, _, function = test.partition("::")
    path = TESTS / name
    return path.exists() and f"def {function.partition('[')[0].rpartition('::')[2]}(" in path.read_text()
