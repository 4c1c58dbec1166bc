"""Descriptions of settings as lines of a job file."""

import json
from collections.abc import Iterator
from dataclasses import MISSING, is_dataclass
from typing import Any, get_type_hints

from oddlot.config.strategy_tables import KINDS, strategy_name
from oddlot.core.field_docs import field_docs
from oddlot.core.strategy import Strategy
from oddlot.core.validation import default_of, settings_of
from oddlot.strategies import Synchronous
from oddlot.strategies.registry import INSIDE


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
            # A file has no None: it leaves the setting out.
            comment = f"   # {meanings[name].replace('None:', 'left out:')}" if name in meanings else ""
            unset = "# " if default is None else ""
            yield f"{unset}{prefix}{name} = {_toml(default)}{comment}"


def _toml(default: Any) -> str:
    """Return a setting's default in TOML; a placeholder if it has none."""
    return "... (needed)" if default is MISSING else "..." if default is None else json.dumps(default)
