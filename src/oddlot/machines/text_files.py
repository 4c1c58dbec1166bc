"""Reading text files, plain or gzipped."""

import csv
import gzip
import stat
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from oddlot.core.support.errors import InvalidValue, UsageError

Parsed = TypeVar("Parsed")
MAX_BYTES = 200_000_000
"""Largest size of a file, after decompression."""


def read_packed(path: Path | str, parse: Callable[[str], Parsed]) -> Parsed:
    """Return `parse(text)` of a text file, gzipped if its name ends in .gz.

    Raise UsageError, with the file and the fault, if it cannot be read or parsed.
    """
    path = checked_path(path)
    check_regular(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise unreadable(path, error) from None
    except (EOFError, zlib.error) as error:
        message = f"{path} is not a complete gzip file: {error}"
        raise UsageError(message, "damaged_file", path=str(path), reason=str(error)) from None
    if len(data) > MAX_BYTES:
        message = f"{path} has more than {MAX_BYTES:,} bytes: use a smaller file"
        raise UsageError(message, "file_too_large", path=str(path))
    try:
        return parse(data.decode().removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from None
    except csv.Error as error:
        raise UsageError(f"{path}: {error}", "invalid_csv", path=str(path), reason=str(error)) from None
    except UsageError as error:
        raise error.with_message(f"{path}: {error}", path=str(path)) from None


def checked_path(path: object) -> Path:
    """Return a path. Raise UsageError if the value is not a path."""
    if not isinstance(path, str | Path) or "\0" in str(path) or not str(path):
        raise InvalidValue("path", path, "a file's path")
    return Path(path).expanduser()


def check_regular(path: Path) -> None:
    """Raise UsageError for a pipe, a socket or a device, because reading from it may never end."""
    with suppress(OSError):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            message = f"{path} is a pipe, a socket or a device: save its content in a file and pass that file"
            raise UsageError(message, "not_a_file", path=str(path))


def unreadable(path: Path, error: OSError) -> UsageError:
    """Return the error for a file that does not exist or cannot be read."""
    reason = error.strerror or str(error)
    return UsageError(f"{path} cannot be read: {reason}", "unreadable_file", path=str(path), reason=reason)


def not_utf8(path: Path, error: UnicodeDecodeError) -> UsageError:
    """Return the error for a file that is not UTF-8."""
    message = f"{path} is not UTF-8 text: byte {error.start} is invalid"
    return UsageError(message, "not_utf8", path=str(path), byte=error.start)
