"""Profiles of jobs as TOML files."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from oddlot.checkpoint.local_storage import naming_path, replace_file
from oddlot.core.support.errors import UsageError
from oddlot.planner.profile import Profile


def write_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile as a TOML file. Raise UsageError if that is impossible."""
    file = Path(path).expanduser()
    if file.is_dir() or not file.parent.is_dir():
        what = "it is a folder" if file.is_dir() else f"there is no folder {file.parent}"
        raise UsageError(f"{file} cannot be written: {what}", "unwritable_file", path=str(file), reason=what)
    with naming_path(file):
        replace_file(file, "".join(f"{line}\n" for line in _lines(asdict(profile))).encode())


def read_profile(path: str | Path) -> Profile:
    """Read a profile. Raise UsageError if the file is missing or invalid."""
    file = Path(path).expanduser()
    try:
        return TypeAdapter(Profile).validate_python(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"{file} cannot be read: {reason}", "unreadable_file", path=str(file), reason=reason
        ) from None
    except (ValueError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        message = f"{file} is not a profile that oddlot profile has written: {reason}"
        raise UsageError(message, "invalid_profile", path=str(file), reason=reason) from None


def _lines(plain: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a TOML file: plain values first, then tables and lists of tables."""
    tables = {name: value for name, value in plain.items() if isinstance(value, dict | list | tuple)}
    for name, value in plain.items():
        if name not in tables:
            yield f"{name} = {json.dumps(value)}"
    for name, value in tables.items():
        for row in [value] if isinstance(value, dict) else value:
            yield f"\n[{name}]" if isinstance(value, dict) else f"\n[[{name}]]"
            yield from (f"{json.dumps(str(key))} = {json.dumps(each)}" for key, each in row.items())
