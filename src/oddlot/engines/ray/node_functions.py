"""Functions that are called on nodes of a cluster. Calls start fast: this module imports neither Ray nor PyTorch."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

MAX_LOG_BYTES = 256_000
"""Number of bytes that are kept from the end of each file with a worker's output."""


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process of this machine, unless it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def end_of(files: Sequence[str]) -> bytes:
    """Return the joined ends of these files. Files that cannot be read are left out."""
    parts = []
    for file in files:
        with suppress(OSError), Path(file).open("rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
            parts.append(opened.read())
    return b"".join(parts)


def answer() -> bool:
    """Return True, to show that this node responds."""
    return True
