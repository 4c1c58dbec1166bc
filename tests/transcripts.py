"""Golden texts: the sentences of errors and warnings, and other output.

Tests assert errors and warnings by code and fields. Their sentences are in tests/messages/errors.txt, by code, with
masked values of fields and the number of tests of each sentence. Other texts are in the other files of this folder, by
test. `pytest --rewrite` writes the actual texts. Review them before you commit them.

The field `reason` (a message of another library or the system), addresses, and folders of tests are masked.
"""

import difflib
import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
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
ERRORS = MESSAGES / "errors.txt"
Sentences = dict[str, dict[str, int]]
"""Number of tests by code and sentence."""
_text: list[str] = []
"""Texts of the running test."""
_sentences: set[tuple[str, str]] = set()
"""Codes and sentences of the errors of the running test."""
_masks: dict[str, str] = {}
"""Masks for all texts of the running test: expression by name."""


@dataclass
class Caught:
    """Errors or warnings that `raises` or `warns` has caught. It is empty inside the block."""

    value: Any = None
    all: list[Any] = field(default_factory=list)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the error, or of the first warning."""
        fields: dict[str, Any] = self.value.fields
        return fields


@contextmanager
def raises(kind: type[BaseException], code: str = "", /, **fields: Any) -> Iterator[Caught]:
    """Assert that the block raises an error of this kind, with this code and at least these fields.

    Internal errors have no code.
    """
    caught = Caught()
    with pytest.raises(kind) as info:
        yield caught
    caught.value, caught.all = info.value, [info.value]
    check(info.value, code, **fields)


@contextmanager
def warns(code: str, /, **fields: Any) -> Iterator[Caught]:
    """Assert that the block warns with this code and at least these fields. Pass on other warnings."""
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
    """Assert that the error has this code and at least these fields. Add its sentences to the transcript."""
    has = getattr(error, "code", ""), getattr(error, "fields", {})
    assert has[0] == code, f"{has[0]} {has[1]}: {error}"
    assert {**has[1], **fields} == has[1], f"{has[1]}: {error}"
    for each in getattr(error, "errors", (error,)):
        _sentences.add((getattr(each, "code", "") or type(each).__name__, sentence_of(each)))


def text_of(error: Any) -> str:
    """Return the text of an error, with the words of other libraries masked."""
    text = str(error)
    for each in getattr(error, "errors", (error,)):
        reason = getattr(each, "fields", {}).get("reason")
        text = text.replace(str(reason), "<reason>") if reason else text
    return text


def sentence_of(error: Any) -> str:
    """Return the text of an error on one line, with the values of its fields masked by their names."""
    text, shown = text_of(error), dict[str, str]()
    for name, value in sorted(getattr(error, "fields", {}).items()):
        forms = [str(value), repr(value)]
        forms += [f"{value:,}"] if type(value) is int else [f"{value:g}"] if type(value) is float else []
        if isinstance(value, list | tuple):
            forms += [", ".join(map(str, value)), *filter(_is_name, value)]
        for form in forms:
            if form not in {"", "True", "False", "None"} and not (form.isdigit() and len(form) == 1):
                shown.setdefault(form, name)
    for form in sorted(shown, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.<]){re.escape(form)}(?!\w|\.\d)", f"<{shown[form]}>", text)
    return " ".join(masked(text).split())


def mask(**masks: str) -> None:
    """Mask these expressions in all further texts of the test, including errors, like `transcribe`."""
    _masks.update(masks)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) > 2


def transcribe(text: str, **masks: str) -> None:
    """Add a text to the test's transcript. `pid=r"\\d+"` replaces each match of the expression with `<pid>`."""
    text = masked(text, **masks)
    if text not in _text:
        _text.append(text)


def masked(text: str, **masks: str) -> str:
    """Return the text without its varying parts."""
    for name, expression in {**_masks, **masks}.items():
        text = re.sub(expression, f"<{name}>", text)
    for expression, instead in LEFT_OUT.items():
        text = re.sub(expression, instead, text)
    return text


class Transcript:
    """The texts of one test, and the texts in tests/messages that it is compared with."""

    def __init__(self, test: str) -> None:
        self.test = test.removeprefix("tests/")
        _text.clear()
        _masks.clear()
        _sentences.clear()

    @property
    def block(self) -> str:
        """The texts without errors and warnings, indented."""
        lines = [line.rstrip() for text in _text for line in text.splitlines() or [""]]
        return textwrap.indent("\n".join(lines), "    ").rstrip("\n")

    def compare(self) -> None:
        """Raise AssertionError if a text or a sentence is not in the files."""
        known = read_errors()
        for code, sentence in sorted(_sentences):
            if sentence not in known.get(code, {}):
                others = "\n".join(known.get(code, {"nothing": 0}))
                raise AssertionError(
                    f"{code} has another sentence:\n{sentence}\n\nKnown:\n{others}\n\n{self._how}"
                )
        before = read(file_of(self.test)).get(self.test, "")
        if self.block != before:
            difference = difflib.unified_diff(before.splitlines(), self.block.splitlines(), lineterm="")
            message = "\n".join([*list(difference)[2:], self._how])
            raise AssertionError(f"{file_of(self.test)} has another text of {self.test}:\n{message}")

    @property
    def _how(self) -> str:
        return f"pytest --rewrite 'tests/{self.test}' writes what came out"

    @property
    def sentences(self) -> list[tuple[str, str]]:
        """Codes and sentences of the errors."""
        return sorted(_sentences)


def file_of(test: str) -> Path:
    """Return the file with a test's block: one file per folder of tests, and per module outside of folders."""
    path = Path(test.partition("::")[0])
    name = path.parts[0] if len(path.parts) > 1 else path.stem.removeprefix("test_")
    return MESSAGES / f"{name}.txt"


_files: dict[Path, dict[str, str]] = {}


def read(path: Path) -> dict[str, str]:
    """Return the blocks of a file, by test."""
    if path not in _files:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        blocks = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
        heads = [block.partition("\n") for block in blocks if block.strip()]
        _files[path] = {head: body.rstrip("\n") for head, _, body in heads}
    return _files[path]


def rewrite(message: Mapping[str, str], collected: set[str]) -> None:
    """Write the blocks of these tests, and remove the blocks of deleted tests.

    A test is deleted if its function no longer exists, or if `collected` has its function but not the test.
    """
    functions = {test.partition("[")[0] for test in collected}
    for path in {*map(file_of, message), *MESSAGES.glob("*.txt")} - {ERRORS}:
        before = read(path)
        after = {t: block for t, block in before.items() if is_there(t) and file_of(t) == path}
        after = {t: b for t, b in after.items() if t in collected or t.partition("[")[0] not in functions}
        after |= {test: block for test, block in message.items() if file_of(test) == path}
        after = {test: block for test, block in sorted(after.items()) if block}
        if not after:
            path.unlink(missing_ok=True)
        elif after != before:
            path.parent.mkdir(exist_ok=True)
            path.write_text(
                "\n".join(f"{test}\n{block}\n" for test, block in after.items()), encoding="utf-8"
            )


def is_there(test: str) -> bool:
    """Return whether a test's function is in its file."""
    name, _, function = test.partition("::")
    path = TESTS / name
    return path.exists() and f"def {function.partition('[')[0].rpartition('::')[2]}(" in path.read_text()


@cache
def read_errors() -> Sentences:
    """Return the sentences of tests/messages/errors.txt, with the number of tests of each."""
    found: Sentences = {}
    for line in ERRORS.read_text(encoding="utf-8").splitlines() if ERRORS.exists() else ():
        if not line.startswith(" "):
            sentences = found.setdefault(line, {})
        else:
            count, _, sentence = line.strip().partition("  ")
            sentences[sentence] = int(count)
    return found


def rewrite_errors(came_out: Iterable[tuple[str, str]]) -> None:
    """Add the sentences of errors, and count their tests. Sentences of other tests stay: delete the file, and run the
    tests of all tiers, to remove old ones."""
    counts: Sentences = {code: dict(each) for code, each in read_errors().items()}
    for (code, sentence), tests in Counter(came_out).items():
        known = counts.setdefault(code, {})
        known[sentence] = max(tests, known.get(sentence, 0))
    lines = []
    for code, sentences in sorted(counts.items()):
        lines += [code, *(f"{count:5}  {sentence}" for sentence, count in sorted(sentences.items()))]
    ERRORS.write_text("\n".join(lines) + "\n", encoding="utf-8")
