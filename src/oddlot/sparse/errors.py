"""Built-in exceptions and warnings with a code and fields, as in oddlot, and a memory check."""

import os
from pathlib import Path
from typing import Any, TypeVar

AnyError = TypeVar("AnyError", bound=BaseException)


def coded(error: AnyError, code: str, **fields: Any) -> AnyError:
    """Return the error with a stable `code`, and `fields` with the values in its message.

    The field `reason` is the message of another library or of the system.
    """
    vars(error).update(code=code, fields=fields)
    return error


def invalid_value(name: str, given: Any, must: str) -> ValueError:
    """Return the error for an invalid value of the setting `name`."""
    sentence = f"{name} = {given!r} must be {must}"
    return coded(ValueError(sentence), "invalid_value", name=name, given=given, must=must)


LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files that contain the memory limit of a container."""


def check_memory(bytes_needed: int, what: str) -> None:
    """Raise MemoryError if `what` needs more memory than this machine or container has."""
    has = min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits()])
    if bytes_needed > has:
        message = f"{what} needs {bytes_needed / 1e9:,.1f} GB, but this machine has {has / 1e9:,.1f} GB"
        raise coded(MemoryError(message), "not_enough_memory", what=what, needs=bytes_needed, has=has)


def bytes_held() -> int:
    """Return the resident memory of this process in bytes, or 0 if it is unknown."""
    message = Path("/proc/self/statm")
    return int(message.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if message.is_file() else 0


def _limits() -> list[int]:
    texts = [path.read_text().strip() for name in LIMITS if (path := Path(name)).is_file()]
    return [int(text) for text in texts if text.isdigit()]
