"""Users' own code: classes by their import path, and errors with a traceback short enough for a log and a message."""

import re
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dis import get_instructions
from types import CodeType, FunctionType, MethodType
from typing import Any

from oddlot.core.errors import JobError, UsageError
from oddlot.core.suggestions import or_nearest
from oddlot.core.user_imports import user_module

MAX_TEXT_CHARACTERS = 1_000
"""Length limit of an exception's text."""
MAX_TRACE_CHARACTERS = 5_000
"""Length limit of a traceback."""
MAX_CALLS = 2
"""Call depth of the search for objects that a user's function uses."""


def is_import_path(name: str) -> bool:
    """Return whether a name has the form `package.module:Class`."""
    return re.fullmatch(r"[\w.]+:\w+", name) is not None


def place_of(kind: type) -> str:
    """Return `package.module:Class`."""
    return f"{kind.__module__}:{kind.__qualname__}"


def imported_class(path: str, base: type, kind: str, key: str) -> type[Any]:
    """Return the class at an import path, a subclass of `base`. `kind` is its noun, such as `strategy`.

    Raise UsageError, about the setting `key`, if the module cannot be imported or has no such class.
    """
    module_name, _, class_name = path.partition(":")
    try:
        module = user_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _not_importable(path, kind, key, error) from None  # a module that it imports is missing
        told = f"the {kind} {path} cannot be imported: there is no module {error.name}. Add its folder to PYTHONPATH"
        raise UsageError(told, f"{kind}_not_importable", key, given=path, reason=str(error)) from None
    except Exception as error:  # noqa: BLE001 - a module may raise anything
        raise _not_importable(path, kind, key, error) from None
    found = getattr(module, class_name, None)
    if found is None:
        names = [
            name for name, each in vars(module).items() if isinstance(each, type) and issubclass(each, base)
        ]
        told = f"{module_name} has no class {class_name!r}. {or_nearest(class_name, names)}"
        raise UsageError(told, f"not_a_{kind}", key, given=path)
    if not isinstance(found, type) or not issubclass(found, base):
        told = f"{path} is not a subclass of oddlot.{base.__name__}"
        raise UsageError(told, f"not_a_{kind}", key, given=path)
    return found


def _not_importable(path: str, kind: str, key: str, error: Exception) -> UsageError:
    reason = trace_of(error)
    told = f"the {kind} {path} cannot be imported:\n{reason}"
    return UsageError(told, f"{kind}_not_importable", key, given=path, reason=reason)


def user_code_failed(where: str, trace: str, told: str = "", **fields: Any) -> JobError:
    """Return the error for an exception of the job's code. `told` is inserted before its traceback."""
    sentence = f"the job's code failed on {where}{told}:\n{trace}"
    return JobError(sentence, "user_code_failed", where=where, **fields, reason=trace)


def trace_of(error: BaseException) -> str:
    """Return the traceback of an exception, with a long exception text shortened."""
    trace = "".join(traceback.format_exception(error))
    for each in chain_of(error):
        text = ""
        with suppress(Exception):  # the `__str__` of a user's class may fail
            text = str(each)
        if len(text) > MAX_TEXT_CHARACTERS:
            trace = trace.replace(text, f"{text[:MAX_TEXT_CHARACTERS]}... ({len(text):,} characters)")
    return shortened(trace)


def shortened(text: str) -> str:
    """Shorten a text to `MAX_TRACE_CHARACTERS`: cut characters after its first fifth."""
    if len(text) <= MAX_TRACE_CHARACTERS:
        return text
    head, mark = text[: MAX_TRACE_CHARACTERS // 5], f"\n... ({len(text):,} characters) ...\n"
    return head + mark + text[len(head) + len(mark) - MAX_TRACE_CHARACTERS :]


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and its causes."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def parts_of_function(function: Any) -> dict[str, Any]:
    """Return the globals and closure variables that a Python function uses; an empty dict for another object."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    if code is None:
        return {}
    names = getattr(function, "__globals__", {})
    used = {name: names[name] for name in _globals_of(code) if name in names}
    for name, cell in zip(code.co_freevars, cells, strict=True):
        with suppress(ValueError):  # it has no value yet
            used[name] = cell.cell_contents
    return used


def used_by(function: Any, path: str, depth: int = MAX_CALLS) -> Iterator[tuple[str, Any]]:
    """Yield the path and value of everything that a user's function uses: `training_step.scaler`, also through others.

    For a bound method or a callable object, this includes the attributes of the object.
    """
    of_object = getattr(getattr(function, "__self__", function), "__dict__", {})
    for name, value in (*of_object.items(), *parts_of_function(function).items()):
        yield f"{path}.{name}", value
        if depth and isinstance(value, FunctionType | MethodType):
            yield from used_by(value, f"{path}.{name}", depth - 1)


def _globals_of(code: CodeType) -> Iterator[str]:
    """Yield the names of the globals that code loads, also in functions inside it."""
    yield from (one.argval for one in get_instructions(code) if one.opname == "LOAD_GLOBAL")
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_of(inner)
