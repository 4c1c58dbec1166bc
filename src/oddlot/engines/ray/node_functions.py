"""Functions that are called on nodes of a cluster. This module imports neither Ray nor PyTorch, so calls start fast."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

MAX_LOG_BYTES = 256_000
"""Largest part of the output of a worker that is kept, from its end."""


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process of this machine, which may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def end_of(files: Sequence[str]) -> bytes:
    """Return the end of these files, which may be gone."""
    parts = []
    for file in files:
        with suppress(OSError), Path(file).open("rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
            parts.append(opened.read())
    return b"".join(parts)


def answer() -> bool:
    """Return that this node is there."""
    return True
