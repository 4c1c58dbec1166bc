"""Output of the processes of peers, shown by the launcher."""

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from oddlot.checkpoint.disk import open_to_read

MAX_BYTES = 1 << 20
"""Bytes that are read from a file at once."""
MAX_LINES = 10_000
"""Distinct lines that are remembered."""


def to_stderr(line: str) -> None:
    """Write a line to stderr."""
    with suppress(OSError, ValueError):  # closed
        sys.stderr.write(f"{line}\n")


class PeerOutput:
    """Shows new lines of the files with the output of peers. A line that several peers write is shown once."""

    def __init__(self, show: Callable[[str], object] = to_stderr) -> None:
        self.show = show
        self.paths: list[Path] = []
        """Files of all peers, those that have ended included."""
        self.read_bytes: dict[Path, int] = {}
        self.shown: set[str] = set()

    def read(self) -> None:
        """Show the complete lines that were written since the last call."""
        for path in self.paths:
            for line in self._lines(path):
                if line not in self.shown:
                    self.show(line)
                    self.shown.add(line)
            if len(self.shown) > MAX_LINES:
                self.shown.clear()

    def _lines(self, path: Path) -> list[str]:
        start = self.read_bytes.get(path, 0)
        try:
            with open_to_read(path) as file:
                file.seek(start)
                data = file.read(MAX_BYTES)
        except OSError:  # it was removed
            return []
        if len(data) < MAX_BYTES:
            data = data[: data.rfind(b"\n") + 1]
        self.read_bytes[path] = start + len(data)
        return data.decode("utf-8", "replace").splitlines()
