"""TOML tables that make given strategies, optimizers and schedules: the inverse of the tables that are read."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from oddlot.config.strategy_tables import OPTIMIZERS, SCHEDULES, SWITCHES
from oddlot.core.strategy import Strategy
from oddlot.core.support.user_code import place_of
from oddlot.core.support.validation import settings_of
from oddlot.strategies.registry import BY_NAME, WRAPPERS

KINDS: Mapping[type, str] = {
    kind: name for known in (OPTIMIZERS, SWITCHES, SCHEDULES) for name, kind in known.items()
}
"""Key `kind` of classes."""
NAMES: Mapping[type, str] = {kind: name for name, kind in {**BY_NAME, **WRAPPERS}.items()}
"""Key `name` of strategies."""


def table_from(value: Any) -> dict[str, Any]:
    """Return the table of a dataclass, with all settings except those that are None."""
    kind = type(value)
    table = {"name": NAMES.get(kind) or place_of(kind)} if isinstance(value, Strategy) else dict[str, Any]()
    if kind in KINDS:
        table["kind"] = KINDS[kind]
    settings = {name: _plain(getattr(value, name)) for name in settings_of(kind)}
    return table | {name: each for name, each in settings.items() if each is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return table_from(value) if is_dataclass(value) else value
