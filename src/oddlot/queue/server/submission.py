"""What a user submits, and its checks."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Self

from oddlot.core.support.errors import InvalidValue, UnknownName
from oddlot.core.support.text import printable
from oddlot.queue.server.attempt import LIMITS

MAX_UNITS, MAX_SECONDS, MAX_LIMIT = 1_000_000, 10 * 365 * 86_400.0, 2**62
MAX_NAME, MAX_ARGUMENTS, MAX_CHARACTERS, MAX_PATH = 200, 4_000, 120_000, 4_000
"""Largest numbers of characters, except for MAX_ARGUMENTS. MAX_CHARACTERS is for an argument or a variable."""

MIN_LIMITS = {
    "memory": 10**7,
    "cpu_seconds": 1,
    "file_size": 10**4,
    "open_files": 16,
    "processes": 1,
    "core_size": 0,
}
"""Smallest limits: below them, hardly any command starts, or its output is cut off."""


@dataclass(frozen=True)
class Submission:
    """A command and its resources."""

    id: str
    """Chosen by the client, so that it can submit again after a lost reply."""
    command: list[str]
    cwd: str
    """Absolute path of the working folder."""
    env: dict[str, str] = field(default_factory=dict)
    gpus: int = 0
    cpus: int = 1
    name: str = ""
    """Name of the job. Jobs with similar names have similar durations. Default: from the command."""
    virtual_cluster: str = ""
    limits: dict[str, int] = field(default_factory=dict)
    """Resource limits: memory, cpu_seconds, file_size, open_files, processes, core_size."""
    estimate: float | None = None
    """Expected seconds, for the case that no similar job has finished."""
    requeue: bool | None = None
    """Start again after a loss or a preemption. Default: only for `oddlot train`."""

    @classmethod
    def checked(cls, given: object) -> Self:
        """Return the submission of an untrusted request. Raise InvalidValue or UnknownName."""
        if not isinstance(given, dict):
            raise InvalidValue("submission", _short(given), "an object")
        for name in given:
            if name not in CHECKS:
                raise UnknownName("field", printable(str(name)[:60]), CHECKS)
        for name in ("id", "command", "cwd"):
            if name not in given:
                raise InvalidValue(name, None, "given")
        for name, value in given.items():
            must = CHECKS[name](value)
            if must:
                raise InvalidValue(name, _short(value), must)
        asked = cls(**given)
        if asked.gpus == asked.cpus == 0:
            raise InvalidValue("cpus", 0, "1 or more for a job without GPU")
        return asked

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the submission from its text in the database."""
        return cls(**json.loads(text))

    def text(self) -> str:
        """Return the text for the database."""
        return json.dumps(asdict(self))


def _short(value: object) -> str:
    return printable(repr(value)[:60])


def _text(most: int, least: int = 0) -> Callable[[object], str]:
    def check(value: object) -> str:
        plain = isinstance(value, str) and least <= len(value) <= most and value.isprintable()
        return "" if plain else f"text of {least} to {most} characters, without control characters"

    return check


def _name(value: object) -> str:
    is_blank = isinstance(value, str) and value != "" and not value.strip()
    return "text that is not blank" if is_blank else _text(MAX_NAME)(value)


def _is_argument(value: object) -> bool:
    """Return whether a value can be an argument or an environment variable."""
    if not isinstance(value, str) or len(value) > MAX_CHARACTERS or "\0" in value:
        return False
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _command(value: object) -> str:
    good = isinstance(value, list) and 0 < len(value) <= MAX_ARGUMENTS and all(map(_is_argument, value))
    return "" if good and value[0] else f"a list of 1 to {MAX_ARGUMENTS} arguments"  # type: ignore[index]


def _cwd(value: object) -> str:
    good = isinstance(value, str) and len(value) <= MAX_PATH and _is_argument(value)
    return "" if good and PurePath(str(value)).is_absolute() else "an absolute path"


def _env(value: object) -> str:
    good = isinstance(value, dict) and all(
        _is_argument(name) and name and "=" not in name and _is_argument(text) for name, text in value.items()
    )
    return "" if good else "an object of environment variables"


def _count(value: object) -> str:
    good = type(value) is int and 0 <= value <= MAX_UNITS
    return "" if good else f"a whole number from 0 to {MAX_UNITS}"


def _limits(value: object) -> str:
    good = isinstance(value, Mapping) and all(
        name in LIMITS and type(limit) is int and limit <= MAX_LIMIT for name, limit in value.items()
    )
    if not good:
        return f"an object of whole numbers by name ({', '.join(LIMITS)})"
    small = [name for name, least in MIN_LIMITS.items() if value.get(name, least) < least]  # type: ignore[attr-defined]
    return ", ".join(f"at least {MIN_LIMITS[name]:,} for {name}" for name in small)


def _seconds(value: object) -> str:
    good = value is None or (
        type(value) in {int, float} and math.isfinite(value) and 0 < value <= MAX_SECONDS  # type: ignore[arg-type, operator]
    )
    return "" if good else "a number of seconds above 0"


def _flag(value: object) -> str:
    return "" if value is None or isinstance(value, bool) else "true or false"


CHECKS: dict[str, Callable[[object], str]] = {
    "id": _text(64, 1),
    "command": _command,
    "cwd": _cwd,
    "env": _env,
    "gpus": _count,
    "cpus": _count,
    "name": _name,
    "virtual_cluster": _name,
    "limits": _limits,
    "estimate": _seconds,
    "requeue": _flag,
}
"""By field, a function that returns what the value must be, or an empty text if it is valid."""
