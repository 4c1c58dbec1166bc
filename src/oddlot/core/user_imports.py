"""Imports of users' modules. A module must not start a run while it is imported, because workers import it too."""

import sys
from contextvars import ContextVar
from importlib import import_module
from types import FrameType, ModuleType

from oddlot.core.errors import UsageError

_importing: ContextVar[bool] = ContextVar("importing", default=False)


class _Process:
    """The state of this process."""

    is_worker = False


def enter_worker() -> None:
    """Mark this process as a worker or peer of a run: modules that it imports must not start runs."""
    _Process.is_worker = True


def user_module(name: str) -> ModuleType:
    """Import a module by its name. `check_not_importing` raises UsageError while it is imported."""
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
    told = (
        f"{path}, line {line}, calls oddlot.fit while {module} is imported. Each worker imports {module} too, and "
        'would start its own run: put the call under `if __name__ == "__main__":`'
    )
    raise UsageError(told, "fit_during_import", path=path, line=line, module=module)


def _importing_frame() -> FrameType | None:
    """Return the innermost frame of a module that is being imported; None if there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and (
        frame.f_code.co_name != "<module>" or frame.f_globals.get("__name__") == "__main__"
    ):
        frame = frame.f_back
    return frame
