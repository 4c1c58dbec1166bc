"""Copies of the output of failed workers. They remain when the workers' machines are lost."""

import re
from contextlib import suppress
from pathlib import Path

from oddlot.core.tasks import NodeId
from oddlot.engines.processes.respawn import CRASHES

ENDED = re.compile(
    rb"\*\*\* (SIG[A-Z]+) received|Fatal Python error: (Segmentation fault|Aborted|Bus error)"
    rb"|oddlot: os\._exit\((\d+)\)"  # written by `worker_actor.note_exits`
)
NAMES = {b"Segmentation fault": "SIGSEGV", b"Aborted": "SIGABRT", b"Bus error": "SIGBUS"}


class WorkerLogs:
    """Writes the output of failed workers to files such as `w1.log`. If `folder` is None, it is not kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def keep(self, node: NodeId, output: object) -> int | None:
        """Write the output of a worker that died. Return the exit code found in it, such as -SIGSEGV, or None."""
        self.write(node, output)
        return _exit_code(output) if isinstance(output, bytes) else None

    def write(self, node: NodeId, log: object) -> None:
        """Write the output of a worker into the folder."""
        if self.folder is None or not isinstance(log, bytes) or not log:
            return
        with suppress(OSError):  # a full disk does not end the run
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / f"{node}.log").write_bytes(log)


def _exit_code(log: bytes) -> int | None:
    """Return the exit code in an output, or the negative signal number after a crash, or None."""
    found = ENDED.findall(log)
    if not found:
        return None
    signal_name, words, code = found[-1]
    if code:
        return int(code)
    name = signal_name.decode() or NAMES[words]
    return next((-number for number in CRASHES if number.name == name), None)
