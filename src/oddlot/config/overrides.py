"""Overrides of the command line: flags and `--set a.b=c`."""

import tomllib
from dataclasses import dataclass
from datetime import date, time
from typing import Any

from oddlot.config.strategy_tables import default_kind
from oddlot.config.toml_text import check_text
from oddlot.core.support.errors import MAX_CHARACTERS, UsageError

MAX_DEPTH = 3
"""Largest depth of nested strategies on the command line."""
STRATEGIES = [("strategy", *["inner"] * depth) for depth in range(MAX_DEPTH + 1)]
CHOOSER_OF: dict[tuple[str, ...], str] = {
    ("workload",): "name",
    ("engine",): "kind",
    **dict.fromkeys(STRATEGIES, "name"),
    **{(*table, key): "kind" for table in STRATEGIES for key in ("server", "switch")},
    ("job", "optimizer"): "kind",
    ("job", "lr_schedule"): "kind",
}
"""For each table, the key that decides which other keys it may have. A string instead of the table sets this key."""
CHOOSERS = {(*table, chooser) for table, chooser in CHOOSER_OF.items()} - {("engine", "kind")}
"""A new value of one of these removes the table's other keys. Engines share most of their keys."""


@dataclass(frozen=True, slots=True)
class Override:
    """A value from the command line, and the flag that gave it."""

    flag: str
    keys: tuple[str, ...]
    value: Any

    @classmethod
    def parse(cls, text: str) -> "Override":
        """Parse `a.b=c`, the value of `--set`. c is a TOML value, or otherwise a string, also for dates and times."""
        name, equals, value = text.partition("=")
        keys = tuple(name.strip().split("."))
        if not equals or not all(keys):
            message = f"--set {text}: write a setting and its value, such as --set strategy.k=3"
            raise UsageError(message, "no_setting_and_value", flag=f"--set {text}")
        try:
            check_text(f"{name} = {value}")
            parsed = tomllib.loads(f"value = {value}")["value"]
            parsed = value.strip() if isinstance(parsed, date | time) else parsed
        except UsageError as error:
            begin = name if len(name) <= MAX_CHARACTERS else f"{name[:MAX_CHARACTERS]}..."
            raise error.with_message(f"--set {begin}: {error}", flag=f"--set {begin}") from None
        except ValueError:  # not TOML, or an integer with too many digits for Python
            parsed = value
        except RecursionError:
            message = f"--set {name}: its value is nested too deeply"
            raise UsageError(message, "nested_too_deeply", flag=f"--set {name}") from None
        chooser = CHOOSER_OF.get(keys) if isinstance(parsed, str) else None
        return cls(f"--set {text}", (*keys, chooser) if chooser else keys, parsed)

    def put_into(self, table: dict[str, Any]) -> None:
        """Set the value in nested tables, and create missing tables."""
        *parents, last = self.keys
        default: str | None = None
        for depth, key in enumerate(parents, 1):
            default = default_kind(key, table)
            inner = table.setdefault(key, {})
            if isinstance(inner, str) and (chooser := CHOOSER_OF.get(self.keys[:depth])):
                inner = table[key] = {chooser: inner}
            if not isinstance(inner, dict):
                message = f"{self.flag}: `{key}` is {inner!r}, which has no settings"
                raise UsageError(message, "no_table", flag=self.flag, name=key, given=inner)
            table = inner
        if self.keys in CHOOSERS and table.get(last, default) != self.value:
            table.clear()
        table[last] = self.value


def choosers_first(override: Override) -> tuple[bool, int]:
    """Return a sort key. Choosers come first, outer before inner, because a new chooser removes the keys below it."""
    chooses = override.keys in CHOOSERS
    return not chooses, len(override.keys) if chooses else 0
