"""Reading a log while a process writes it."""

from os import SEEK_END
from pathlib import Path

from oddlot.checkpoint.local_storage import open_to_read
from oddlot.core.records import Record
from oddlot.core.support.errors import CheckpointError
from oddlot.history.log import LineReader


class LogFollower:
    """Reads the new records of a log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begin()

    def begin(self) -> None:
        """Read from the start again."""
        self.offset, self.lines = 0, LineReader(self.path)

    def read(self) -> list[Record] | None:
        """Return the new records, or None if the file is shorter than before.

        After None, the next call reads from the start. Raise CheckpointError if the log is damaged or cannot be read.
        """
        try:
            with open_to_read(self.path) as file:
                size = file.seek(0, SEEK_END)
                file.seek(self.offset)
                data = file.read(max(0, size - self.offset))
        except OSError as error:
            path, reason = str(self.path), error.strerror
            message = f"{path} can no longer be read ({reason}). Run the command again"
            raise CheckpointError(message, "unreadable_file", path=path, reason=reason) from None
        if size < self.offset:  # a resumed run has removed a damaged part
            self.begin()
            return None
        *lines, rest = data.split(b"\n")
        if lines and self.offset == 0:
            self.lines.header(lines.pop(0))
        self.offset += len(data) - len(rest)
        return [self.lines.record(line) for line in lines]
