"""Users' own code: classes by their import path, and errors with a traceback short enough for a log and a message."""

import re
import traceback
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

from oddlot.core.errors import JobError, UsageError

MAX_TEXT_CHARACTERS = 1_000
"""characters of an exception's own text"""
MAX_TRACE_CHARACTERS = 5_000
"""characters of a traceback"""


def is_import_path(name: str) -> bool:
    """Return whether a name has the form `package.module:Class`."""
    return re.fullmatch(r"[\w.]+:\w+", name) is not None


def imported_class(path: str, base: type, kind: str, key: str) -> type[Any]:
    """Return the class at an import path, which must be a subclass of `base`; `kind` is the base's word, as `strategy`.

    UsageError, about the setting `key`: its module cannot be imported, or has no such class.
    """
    module_name, _, class_name = path.partition(":")
    try:
        found = getattr(import_module(module_name), class_name, None)
    except Exception as error:  # noqa: BLE001 - a module may raise anything
        reason = trace_of(error)
        told = f"the {kind} {path} cannot be imported:\n{reason}"
        raise UsageError(told, f"{kind}_not_importable", key, given=path, reason=reason) from None
    if not isinstance(found, type) or not issubclass(found, base):
        told = f"{path} is no subclass of oddlot's {base.__name__}"
        raise UsageError(told, f"not_a_{kind}", key, given=path)
    return found


def user_code_failed(where: str, trace: str, told: str = "", **fields: Any) -> JobError:
    """Return the error for an exception of the job's own code; `told` goes before its traceback."""
    sentence = f"the job's own code failed on {where}{told}:\n{trace}"
    return JobError(sentence, "user_code_failed", where=where, **fields, reason=trace)


def trace_of(error: BaseException) -> str:
    """Return the traceback of an exception. Of a long exception text the beginning stays, with its type and place."""
    trace = "".join(traceback.format_exception(error))
    for each in _chain(error):
        text = ""
        with suppress(Exception):  # of a user's class that cannot be shown
            text = str(each)
        if len(text) > MAX_TEXT_CHARACTERS:
            trace = trace.replace(text, f"{text[:MAX_TEXT_CHARACTERS]}... ({len(text):,} characters)")
    return shortened(trace)


def shortened(text: str) -> str:
    """Return at most `MAX_TRACE_CHARACTERS` characters: a long text loses those behind its first fifth."""
    if len(text) <= MAX_TRACE_CHARACTERS:
        return text
    head, mark = text[: MAX_TRACE_CHARACTERS // 5], f"\n... ({len(text):,} characters) ...\n"
    return head + mark + text[len(head) + len(mark) - MAX_TRACE_CHARACTERS :]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception and those that led to it."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
