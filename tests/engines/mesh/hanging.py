"""Samples that hang or end a peer, each in another way. Peers import this module, so it imports no test modules."""

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor
from torch.utils.data import Dataset

from oddlot.core import task_timeouts, worker_stats
from oddlot.engines.processes import evaluations
from tests.fits import rows

TRAINED_SECONDS = 3.0
"""Seconds that a peer trains before it hangs, so that the other peers know the duration of its steps."""


def hold_lock() -> None:
    """Sleep without releasing the GIL, as extension code may."""
    ctypes.PyDLL(None).sleep(1000)


def wait() -> None:
    """Wait forever. The GIL is released."""
    threading.Event().wait()


def stop() -> None:
    """Suspend the process."""
    os.kill(os.getpid(), signal.SIGSTOP)


def leave() -> None:
    """End the process with exit code 1."""
    os._exit(1)


HANGS: dict[int, Callable[[], None]] = {7: hold_lock, 8: wait, 9: stop, 10: leave, 11: wait}
TRAINED, EVALUATED = (7, 8, 9, 10), (11,)
"""Rows of the training set and of the evaluation set that hang or end a peer."""


class Hanging(Dataset[tuple[Tensor, Tensor]]):
    """A dataset with the rows of `HANGS`. The first peer that reads such a row starts two processes and hangs or ends.

    A file in `folder` lists the ids of the three processes.
    """

    def __init__(self, folder: Path, count: int, hangs: Sequence[int]) -> None:
        self.folder, self.rows, self.hangs, self.began = folder, rows(count), hangs, 0.0
        self.since = 0.0

    def __len__(self) -> int:
        return len(self.rows[0])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.began, self.since = self.began or time.monotonic(), self.since or time.time()
        note = self.folder / str(index)
        if index in self.hangs and not note.exists() and self._is_due(index):
            children = [subprocess.Popen(["sleep", "600"], start_new_session=index == 8) for _ in range(2)]
            message = " ".join(str(pid) for pid in (os.getpid(), *(child.pid for child in children)))
            new = self.folder / f"new-{os.getpid()}"
            new.write_text(message)
            new.rename(note)
            HANGS[index]()
        return self.rows[0][index], self.rows[1][index]

    def _is_due(self, index: int) -> bool:
        """Return whether the peer has trained for some time and enough other peers run, so that not all end at once."""
        is_replacement = any(note.stat().st_mtime < self.since for note in self.folder.glob("[0-9]*"))
        others_run = {10: is_replacement, 11: (self.folder / "10").exists()}.get(index, True)
        return others_run and time.monotonic() > self.began + TRAINED_SECONDS


def be_impatient() -> None:
    """Set the timeouts of hung computations to 6 s in this process."""
    task_timeouts.HUNG_SECONDS, task_timeouts.HUNG_TIMEOUTS = 6.0, 1.0
    worker_stats.FIRST_UPDATE_TIMEOUT_SECONDS = worker_stats.SECONDS_UNTIL_KNOWN = 3.0
    worker_stats.MIN_TIMEOUT_SECONDS = 3.0
    evaluations.FIRST_SECONDS = evaluations.MIN_SECONDS = 6.0
