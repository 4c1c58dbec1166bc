"""Imports of the packages of `oddlot[queue]`."""

from importlib import import_module
from types import ModuleType

from oddlot.core.support.errors import UsageError


def extra(name: str, purpose: str) -> ModuleType:
    """Return a module of the extra `queue`. Raise UsageError if it is not installed. `purpose` needs it."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        message = f"{purpose} needs {package}: run pip install 'oddlot[queue]'"
        raise UsageError(message, "missing_package", package=package) from None
