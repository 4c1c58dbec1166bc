"""TOML tables of strategies, optimizers and learning rate schedules, and descriptions of their settings."""

import json
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, is_dataclass, replace
from functools import cache
from typing import Any, get_type_hints

from oddlot.config.dataclass_tables import TableChoice, change_of, table_of
from oddlot.core.optimizers import SGD, Adam, AdamW, Optimizer
from oddlot.core.strategy import Strategy
from oddlot.core.strategy_wrapper import StrategyWrapper
from oddlot.core.support.text import field_docs
from oddlot.core.support.validation import default_of, settings_of
from oddlot.strategies import Synchronous
from oddlot.strategies.registry import BY_NAME, INSIDE, WRAPPERS, strategy_class
from oddlot.strategies.support.stage_switching import ByError, ByGradients, ByNoConstants, ByPlateau, Switch
from oddlot.train.lr_schedules import Cosine, Linear, MultiStep

OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
BY_NO_CONSTANTS: dict[str, type[ByNoConstants]] = {"gradients": ByGradients, "plateau": ByPlateau}
SWITCHES: dict[str, type[Switch]] = {**BY_NO_CONSTANTS, "error": ByError}
KINDS: dict[Any, Mapping[str, type]] = {
    Optimizer: OPTIMIZERS,
    Switch: SWITCHES,
    ByNoConstants: BY_NO_CONSTANTS,
}
"""Base classes, with their subclasses by name in a job file."""
SCHEDULES: dict[str, type] = {"cosine": Cosine, "linear": Linear, "steps": MultiStep}


def strategy_name(makes: Callable[[], Strategy]) -> str:
    """Return the name of a strategy in job files."""
    names: dict[type[Strategy], str] = {kind: name for name, kind in BY_NAME.items()}
    return names[type(makes())]


def default_kind(key: str, around: Mapping[str, Any]) -> str | None:
    """Return the default kind of the table `key` in the table `around`, or None."""
    match key:
        case "server" | "switch":
            return "sgd" if key == "server" else "gradients"
        case "strategy" | "inner":
            wrapper = WRAPPERS.get(str(around.get("name"))) if key == "inner" else None
            return strategy_name(INSIDE.get(wrapper, Synchronous)) if wrapper else "synchronous"
    return None


OPTIMIZER_TABLES = {name: table_of(kind, alone=False, kind=name) for name, kind in OPTIMIZERS.items()}
OPTIMIZER = TableChoice("kind", OPTIMIZER_TABLES, change_of(OPTIMIZERS))
"""The table of an optimizer. Without `kind`, its keys change the current optimizer."""
SCHEDULE = TableChoice("kind", {name: table_of(kind, kind=name) for name, kind in SCHEDULES.items()})
SWITCH_TABLES = {name: table_of(kind, kind=name) for name, kind in SWITCHES.items()}
OF_STRATEGIES: dict[Any, TableChoice] = {Optimizer: OPTIMIZER}
OF_STRATEGIES |= {
    union: TableChoice(
        "kind", {name: SWITCH_TABLES[name] for name in KINDS[union]}, SWITCH_TABLES["gradients"]
    )
    for union in (Switch, ByNoConstants)
}
STRATEGY_TABLES: dict[str, Any] = {
    name: table_of(kind, choices=OF_STRATEGIES, name=name) for name, kind in BY_NAME.items()
}


@cache
def _imported_table(name: str) -> type[Any]:
    """Return the table of a user-defined strategy."""
    kind = strategy_class(name)
    choices = {**OF_STRATEGIES, **({Strategy: _inner(kind)} if issubclass(kind, StrategyWrapper) else {})}
    return table_of(kind, choices=choices, name=name)


STRATEGY = TableChoice("name", STRATEGY_TABLES, STRATEGY_TABLES["synchronous"], elsewhere=_imported_table)


def _inner(wrapper: type) -> TableChoice:
    """Return the table of a strategy inside a wrapper. Without a name, it changes the wrapper's default."""
    if wrapper not in INSIDE:
        return replace(STRATEGY, hinted=_allowed_inside)
    begins, name = INSIDE[wrapper], strategy_name(INSIDE[wrapper])
    change = change_of({name: type(begins())}, begins=begins, choices=OF_STRATEGIES, name=name)
    return replace(
        STRATEGY, tables=ChainMap({name: change}, STRATEGY_TABLES), otherwise=change, hinted=_allowed_inside
    )


def _allowed_inside(around: Collection[str]) -> set[str]:
    """Return the names of strategies that are allowed inside these wrappers.

    A wrapper cannot be used twice, and some wrappers accept only synchronous strategies.
    """
    if any(WRAPPERS[name] in INSIDE for name in around):
        return {name for name, kind in BY_NAME.items() if kind().traits(1).waits_for_all}
    return {*BY_NAME, *WRAPPERS} - {*around}


STRATEGY_TABLES |= {
    name: table_of(kind, choices={Strategy: _inner(kind)}, name=name) for name, kind in WRAPPERS.items()
}


def describe_settings(kind: type, prefix: str, begin: object = None) -> Iterator[str]:
    """Yield a line per setting of a dataclass: name, default (from `begin`) and description."""
    meanings, hints = field_docs(kind), get_type_hints(kind)
    for name, one in settings_of(kind).items():
        default = default_of(one) if begin is None else getattr(begin, name)
        if default is MISSING and hints[name] is Strategy:
            inside = INSIDE.get(kind, Synchronous)
            yield f'{prefix}{name}.name = "{strategy_name(inside)}"   # or another one, with its settings'
            if kind in INSIDE:
                yield from describe_settings(type(inside()), f"{prefix}{name}.", inside())
        elif is_dataclass(default) and not isinstance(default, type):
            kinds = KINDS.get(hints[name], {})
            if kind_now := next((word for word, one in kinds.items() if isinstance(default, one)), ""):
                yield f'{prefix}{name}.kind = "{kind_now}"   # {", ".join(kinds)}'
                others = (word for word in kinds if word != kind_now)
                for word in others:
                    yield f"#   {word}"
                    yield from (f"#     {line}" for line in describe_settings(kinds[word], ""))
            yield from describe_settings(type(default), f"{prefix}{name}.", default)
        else:
            # TOML has no None, so the setting is left out.
            comment = f"   # {meanings[name].replace('None:', 'left out:')}" if name in meanings else ""
            unset = "# " if default is None else ""
            yield f"{unset}{prefix}{name} = {_toml(default)}{comment}"


def _toml(default: Any) -> str:
    """Return a setting's default in TOML, or a placeholder without a default."""
    return "... (needed)" if default is MISSING else "..." if default is None else json.dumps(default)
