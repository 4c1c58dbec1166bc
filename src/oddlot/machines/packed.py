"""Text files of records, packed or not."""

import csv
import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from oddlot.core.errors import UsageError
from oddlot.machines.toml_file import check_regular, checked_path, not_utf8, unreadable

Parsed = TypeVar("Parsed")
MOST_BYTES = 200_000_000
"""of a record, unpacked"""


def read_packed(path: Path | str, parse: Callable[[str], Parsed]) -> Parsed:
    """What `parse` makes of a text file, gzipped if its name ends in .gz. UsageError names the file and the fault."""
    path = checked_path(path)
    check_regular(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise unreadable(path, error) from None
    except (EOFError, zlib.error) as error:
        told = f"{path} is not a whole gzip file: {error}"
        raise UsageError(told, "damaged_file", path=str(path), reason=str(error)) from None
    if len(data) > MOST_BYTES:
        told = f"{path} has more than {MOST_BYTES:,} bytes: that is no trace"
        raise UsageError(told, "file_too_large", path=str(path))
    try:
        return parse(data.decode().removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from None
    except csv.Error as error:
        raise UsageError(f"{path}: {error}", "invalid_csv", path=str(path), reason=str(error)) from None
    except UsageError as error:
        raise error.retold(f"{path}: {error}", path=str(path)) from None
