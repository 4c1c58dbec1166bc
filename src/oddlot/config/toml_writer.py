"""Writing of TOML files."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from oddlot.checkpoint.local_storage import naming_path, replace_file
from oddlot.core.support.errors import UsageError

BARE = re.compile(r"[A-Za-z0-9_-]+")
"""Matches keys without quotes."""


def check_writable(path: Path) -> None:
    """Raise UsageError if `path` is a folder, or in a missing folder."""
    if path.is_dir() or not path.parent.is_dir():
        what = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise UsageError(f"{path} cannot be written: {what}", "unwritable_file", path=str(path), reason=what)


def write_toml(path: Path, plain: Mapping[str, Any], comment: str = "") -> None:
    """Write nested tables to a file, with a comment at the top. Raise UsageError if that is impossible."""
    check_writable(path)
    heading = f"# {comment}\n\n" if comment else ""
    with naming_path(path):
        replace_file(path, (heading + toml_text(plain)).encode())


def toml_text(plain: Mapping[str, Any]) -> str:
    """Return nested tables as TOML. Keys with the value None are left out. Floats are exact."""
    return "".join(f"{line}\n" for line in _lines(plain, ())).removeprefix("\n")


def _lines(table: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a table: plain values first, then tables and lists of tables."""
    inner = {name: value for name, value in table.items() if isinstance(value, Mapping) or _are_tables(value)}
    for name, value in table.items():
        if name not in inner and value is not None:
            yield f"{_key(name)} = {_value(value)}"
    for name, value in inner.items():
        path = (*keys, _key(name))
        heading = ".".join(path)
        for row in [value] if isinstance(value, Mapping) else value:
            yield f"\n[{heading}]" if isinstance(value, Mapping) else f"\n[[{heading}]]"
            yield from _lines(row, path)


def _are_tables(value: Any) -> bool:
    return _is_list(value) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _key(name: object) -> str:
    return str(name) if BARE.fullmatch(str(name)) else _value(str(name))


def _value(value: Any) -> str:
    """Return a value on one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(name)} = {_value(each)}' for name, each in value.items())} }}"
    if _is_list(value):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float) and not isfinite(value):
        return str(value)  # inf and nan, as in TOML
    return json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")
