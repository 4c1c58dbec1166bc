"""Strategies by their names on the command line and in job files, and users' own by their import path."""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial

from oddlot.core.optimizers import SGD
from oddlot.core.strategy import Strategy
from oddlot.core.strategy_wrapper import StrategyWrapper
from oddlot.core.support.errors import UnknownName, UsageError
from oddlot.core.support.user_code import imported_class, is_import_path
from oddlot.strategies import shipped

_SHIPPED: dict[str, type[Strategy]] = {
    kind.__module__.rpartition(".")[2]: kind for kind in vars(shipped).values() if isinstance(kind, type)
}
BY_NAME = {name: kind for name, kind in _SHIPPED.items() if not issubclass(kind, StrategyWrapper)}
"""Strategies by their names on the command line and in job files. The names are the module names."""
WRAPPERS = {name: kind for name, kind in _SHIPPED.items() if issubclass(kind, StrategyWrapper)}
"""Wrappers by name. Each changes another strategy, its `inner` strategy."""

INSIDE: dict[type, Callable[[], Strategy]] = {
    shipped.Quorum: partial(shipped.LocalSGD, server=SGD(lr=0.7, momentum=0.9, nesterov=True))
}
"""Default inner strategies of wrappers in job files, as in the wrappers' papers. Other wrappers: `Synchronous()`."""


def summary_of(kind: type[Strategy]) -> str:
    """Return the first sentence of a strategy's docstring."""
    first = (kind.__doc__ or "").strip().split("\n\n")[0]
    return " ".join(first.split())


def strategy_of(given: Strategy | str) -> Strategy:
    """Return the given strategy, or the named strategy with default settings. Raise UsageError as `strategy_class`
    does."""
    if not isinstance(given, str):
        return given
    kind: Callable[..., Strategy] = strategy_class(given)
    return kind(INSIDE.get(WRAPPERS[given], shipped.Synchronous)()) if given in WRAPPERS else kind()


def strategy_class(name: str) -> type[Strategy]:
    """Return the strategy class of a name, or of an import path such as `mypkg.mymodule:MyStrategy`.

    Raise UsageError if the name is unknown or its module cannot be imported.
    """
    if name in _SHIPPED:
        return _SHIPPED[name]
    if not is_import_path(name):
        unknown = UnknownName("strategy", name, _SHIPPED, key="name")
        raise unknown.with_message(f"{unknown}; or name your own class as package.module:Class")
    kind: type[Strategy] = imported_class(name, Strategy, "strategy", key="name")
    is_whole: bool = is_dataclass(kind)
    if not is_whole:
        message = f"the strategy {name} is not a dataclass: put @dataclass before its class"
        raise UsageError(message, "no_dataclass", "name", given=name)
    return kind
