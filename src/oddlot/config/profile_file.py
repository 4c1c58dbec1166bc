"""Profiles of jobs as TOML files."""

import tomllib
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from oddlot.config.toml_writer import write_toml
from oddlot.core.support.errors import UsageError
from oddlot.planner.profile import Profile


def write_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile as a TOML file. Raise UsageError if that is impossible."""
    write_toml(Path(path).expanduser(), asdict(profile))


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
