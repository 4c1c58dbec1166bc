"""Overrides of the command line: flags and `--set a.b=c`."""

import tomllib
from dataclasses import dataclass
from typing import Any

from oddlot.config.strategy_tables import default_kind
from oddlot.config.toml_text import check_text
from oddlot.core.errors import MAX_CHARACTERS, UsageError

MAX_DEPTH = 3
"""Nested strategies that the command line can name."""
STRATEGIES = [("strategy", *["inner"] * depth) for depth in range(MAX_DEPTH + 1)]
CHOOSER_OF: dict[tuple[str, ...], str] = {
    ("workload",): "name",
    ("engine",): "kind",
    **dict.fromkeys(STRATEGIES, "name"),
    **{(*table, key): "kind" for table in STRATEGIES for key in ("server", "switch")},
    ("job", "optimizer"): "kind",
    ("job", "lr_schedule"): "kind",
}
"""Tables, and the key in them that decides which other keys they may have. A table may be its name alone."""
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
        """Parse the `a.b=c` of `--set a.b=c`. c is a TOML value, or else a string."""
        name, equals, value = text.partition("=")
        keys = tuple(name.strip().split("."))
        if not equals or not all(keys):
            told = f"--set {text}: write a setting and its value, such as --set strategy.k=3"
            raise UsageError(told, "no_setting_and_value", flag=f"--set {text}")
        try:
            check_text(f"{name} = {value}")
            parsed = tomllib.loads(f"value = {value}")["value"]
        except UsageError as error:
            begin = name if len(name) <= MAX_CHARACTERS else f"{name[:MAX_CHARACTERS]}..."
            raise error.retold(f"--set {begin}: {error}", flag=f"--set {begin}") from None
        except ValueError:  # no TOML, or a whole number that Python refuses for its many digits
            parsed = value
        except RecursionError:
            told = f"--set {name}: its value is nested too deeply"
            raise UsageError(told, "nested_too_deeply", flag=f"--set {name}") from None
        chooser = CHOOSER_OF.get(keys) if isinstance(parsed, str) else None
        return cls(f"--set {text}", (*keys, chooser) if chooser else keys, parsed)

    def put_into(self, table: dict[str, Any]) -> None:
        """Set the value in nested tables, and create missing ones."""
        *parents, last = self.keys
        default: str | None = None
        for depth, key in enumerate(parents, 1):
            default = default_kind(key, table)
            inner = table.setdefault(key, {})
            if isinstance(inner, str) and (chooser := CHOOSER_OF.get(self.keys[:depth])):
                inner = table[key] = {chooser: inner}
            if not isinstance(inner, dict):
                told = f"{self.flag}: `{key}` is {inner!r}, which has no settings"
                raise UsageError(told, "no_table", flag=self.flag, name=key, given=inner)
            table = inner
        if self.keys in CHOOSERS and table.get(last, default) != self.value:
            table.clear()
        table[last] = self.value


def choosers_first(override: Override) -> tuple[bool, int]:
    """Return a key to sort by: a new chooser removes the keys beneath it, so the outer ones come first."""
    chooses = override.keys in CHOOSERS
    return not chooses, len(override.keys) if chooses else 0
