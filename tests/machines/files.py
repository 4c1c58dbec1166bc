"""Helpers to write files for tests, and to check errors about them."""

import gzip
from pathlib import Path
from typing import Any

from oddlot.core.support.errors import OddlotError


def written(path: Path, content: str | bytes) -> Path:
    """Write a file and return its path. Text is compressed if the file name ends in .gz."""
    data = content.encode() if isinstance(content, str) else content
    packed = isinstance(content, str) and path.suffix == ".gz"
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def short_id(value: object) -> str | None:
    """Return a short id for a parametrized test: a function's or class's name, and no long texts."""
    if isinstance(value, str | bytes):
        return "text" if len(value) > 40 else None
    return getattr(getattr(value, "func", value), "__name__", None)


def subject(error: OddlotError) -> Any:
    """Return the name of an error's setting, or the invalid value if the error names no setting."""
    return error.fields.get("name", error.fields.get("given"))
