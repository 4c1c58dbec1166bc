"""Users' code: imports by path, checks during imports, shortened tracebacks, and objects that functions use."""

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from dis import get_instructions
from importlib import import_module
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from oddlot.core.support.errors import JobError, UsageError
from oddlot.core.support.text import or_nearest

_importing: ContextVar[bool] = ContextVar("importing", default=False)


class _Process:
    """The state of this process."""

    is_worker = False


def enter_worker() -> None:
    """Mark this process as a worker or peer, so modules that it imports cannot start runs."""
    _Process.is_worker = True


def user_module(name: str) -> ModuleType:
    """Import a module by its name. During the import, `check_not_importing` raises UsageError."""
    token = _importing.set(True)
    try:
        return import_module(name)
    finally:
        _importing.reset(token)


def check_not_importing() -> None:
    """Raise UsageError if a run starts while a worker or the command line imports the module that starts it."""
    frame = _importing_frame() if _Process.is_worker or _importing.get() else None
    if frame is None:
        return
    path, line, module = frame.f_code.co_filename, frame.f_lineno, str(frame.f_globals["__name__"])
    message = (
        f"{path}, line {line}, calls oddlot.fit while {module} is imported. Each worker imports {module} too, and "
        'would start its own run: put the call under `if __name__ == "__main__":`'
    )
    raise UsageError(message, "fit_during_import", path=path, line=line, module=module)


def _importing_frame() -> FrameType | None:
    """Return the innermost frame of a module that is being imported, or None."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and (
        frame.f_code.co_name != "<module>" or frame.f_globals.get("__name__") == "__main__"
    ):
        frame = frame.f_back
    return frame


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
    """Return the import path of a class, `package.module:Class`."""
    return f"{kind.__module__}:{kind.__qualname__}"


def imported_class(path: str, base: type, kind: str, key: str) -> type[Any]:
    """Return the class at an import path. It must be a subclass of `base`. `kind` is its noun in errors.

    Raise UsageError, about the setting `key`, if the module cannot be imported or has no such class.
    """
    module_name, _, class_name = path.partition(":")
    try:
        module = user_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _not_importable(path, kind, key, error) from None  # an import inside the module failed
        message = f"the {kind} {path} cannot be imported: there is no module {error.name}. Add its folder to PYTHONPATH"
        raise UsageError(message, f"{kind}_not_importable", key, given=path, reason=str(error)) from None
    except Exception as error:  # noqa: BLE001 - modules may raise any exception
        raise _not_importable(path, kind, key, error) from None
    found = getattr(module, class_name, None)
    if found is None:
        names = [
            name for name, each in vars(module).items() if isinstance(each, type) and issubclass(each, base)
        ]
        message = f"{module_name} has no class {class_name!r}. {or_nearest(class_name, names)}"
        raise UsageError(message, f"not_a_{kind}", key, given=path)
    if not isinstance(found, type) or not issubclass(found, base):
        message = f"{path} is not a subclass of {_public_path(base)}"
        raise UsageError(message, f"not_a_{kind}", key, given=path)
    return found


def _public_path(kind: type) -> str:
    """Return the path from which users import a class of oddlot."""
    top = __name__.partition(".")[0]
    is_exported = getattr(sys.modules[top], kind.__name__, None) is kind
    return f"{top if is_exported else kind.__module__}.{kind.__name__}"


def _not_importable(path: str, kind: str, key: str, error: Exception) -> UsageError:
    reason = trace_of(error)
    message = f"the {kind} {path} cannot be imported:\n{reason}"
    return UsageError(message, f"{kind}_not_importable", key, given=path, reason=reason)


def user_code_failed(where: str, trace: str, message: str = "", **fields: Any) -> JobError:
    """Return the error for an exception in the job's code. `message` is inserted before the traceback."""
    sentence = f"the job's code failed on {where}{message}:\n{trace}"
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
    """Shorten a text to `MAX_TRACE_CHARACTERS` by removing characters after its first fifth."""
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
    """Return the globals and closure variables that a Python function uses. Empty for other objects."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    if code is None:
        return {}
    names = getattr(function, "__globals__", {})
    used = {name: names[name] for name in _globals_of(code) if name in names}
    for name, cell in zip(code.co_freevars, cells, strict=True):
        with suppress(ValueError):  # the variable has no value yet
            used[name] = cell.cell_contents
    return used


def used_by(function: Any, path: str, depth: int = MAX_CALLS) -> Iterator[tuple[str, Any]]:
    """Yield the path, such as `training_step.scaler`, and the value of each object that a user's function uses.

    This includes objects used by functions that it calls, up to `depth`. For a bound method or a callable object, it
    includes the attributes of the object.
    """
    of_object = getattr(getattr(function, "__self__", function), "__dict__", {})
    for name, value in (*of_object.items(), *parts_of_function(function).items()):
        yield f"{path}.{name}", value
        if depth and isinstance(value, FunctionType | MethodType):
            yield from used_by(value, f"{path}.{name}", depth - 1)


def _globals_of(code: CodeType) -> Iterator[str]:
    """Yield the names of the globals that code loads, including nested functions."""
    yield from (one.argval for one in get_instructions(code) if one.opname == "LOAD_GLOBAL")
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_of(inner)
