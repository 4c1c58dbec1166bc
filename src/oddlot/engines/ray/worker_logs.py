"""Copies of the output of workers that failed, which their machines may take with them."""

import re
from contextlib import suppress
from pathlib import Path

from oddlot.core.tasks import NodeId
from oddlot.engines.processes.respawn import CRASHES

ENDED = re.compile(
    rb"\*\*\* (SIG[A-Z]+) received|Fatal Python error: (Segmentation fault|Aborted|Bus error)"
    rb"|oddlot: os\._exit\((\d+)\)"  # written by `actor.note_exits`
)
NAMES = {b"Segmentation fault": "SIGSEGV", b"Aborted": "SIGABRT", b"Bus error": "SIGBUS"}


class WorkerLogs:
    """Writes the output of failed workers into a folder, as `w1.log`. None: it is not kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def keep(self, node: NodeId, output: object) -> int | None:
        """Keep the output of a worker that died. Return its exit code if the output has one, as `-SIGSEGV`."""
        self.write(node, output)
        return _exit_code(output) if isinstance(output, bytes) else None

    def write(self, node: NodeId, log: object) -> None:
        """Write the output of a worker into the folder."""
        if self.folder is None or not isinstance(log, bytes) or not log:
            return
        with suppress(OSError):  # of a full disk: the run goes on
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / f"{node}.log").write_bytes(log)


def _exit_code(log: bytes) -> int | None:
    """Return the exit code, for a crash the negative number of its signal. None: the output has neither."""
    found = ENDED.findall(log)
    if not found:
        return None
    signal_name, words, code = found[-1]
    if code:
        return int(code)
    name = signal_name.decode() or NAMES[words]
    return next((-number for number in CRASHES if number.name == name), None)
