"""Files for tests, and what errors of such files are about."""

import gzip
from pathlib import Path
from typing import Any

from oddlot.core.support.errors import OddlotError


def written(path: Path, content: str | bytes) -> Path:
    """The path of a file with this; a text is packed where the file's name ends in .gz."""
    data = content.encode() if isinstance(content, str) else content
    packed = isinstance(content, str) and path.suffix == ".gz"
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def short_id(value: object) -> str | None:
    """In the name of a parametrized test: that of a function or a class, and no long text."""
    if isinstance(value, str | bytes):
        return "text" if len(value) > 40 else None
    return getattr(getattr(value, "func", value), "__name__", None)


def subject(error: OddlotError) -> Any:
    """The name of the setting that it is about, or else what was given."""
    return error.fields.get("name", error.fields.get("given"))
