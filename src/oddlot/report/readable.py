"""A strategy's settings in the form of job files, from the text in run.json."""

import ast

from oddlot.core.optimizers import SGD, Adam, AdamW
from oddlot.core.printable import printable
from oddlot.strategies.registry import BY_NAME, WRAPPERS

NAMES = {kind.__name__: name for name, kind in {**BY_NAME, **WRAPPERS}.items()}
NAMES |= {kind.__name__: kind.__name__.lower() for kind in (SGD, Adam, AdamW)}
NAMES |= {"ByGradients": "gradients", "ByPlateau": "plateau", "ByError": "error"}
"""Names of classes in job files."""


def readable(settings: str) -> str:
    """Return `FastestK(k=2, samples=None)` as `fastest_k: k = 2`. Other texts are returned unchanged.

    Settings that are None are left out, as in a job file.
    """
    try:
        call = ast.parse(settings, mode="eval").body
        return printable(_told(call) if isinstance(call, ast.Call) else settings)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return printable(settings)


def _told(call: ast.Call, inside: bool = False) -> str:
    """Return the name and settings of a dataclass. The settings are in brackets if the dataclass is in another one."""
    name = ast.unparse(call.func)
    settings = [f"{one.arg} = {_value(one.value)}" for one in call.keywords if not _is_none(one.value)]
    told = ", ".join([*map(_value, call.args), *settings])
    name = NAMES.get(name, name)
    if not told:
        return name
    return f"{name} ({told})" if inside else f"{name}: {told}"


def _value(value: ast.expr) -> str:
    """Return the text of a setting's value."""
    if isinstance(value, ast.Call):
        return _told(value, inside=True)
    if isinstance(value, ast.Tuple | ast.List):
        return f"[{', '.join(map(_value, value.elts))}]"
    if isinstance(value, ast.Constant):
        return str(value.value).lower() if isinstance(value.value, bool) else str(value.value)
    return ast.unparse(value)


def _is_none(value: ast.expr) -> bool:
    """Return True if a value is None."""
    return isinstance(value, ast.Constant) and value.value is None
