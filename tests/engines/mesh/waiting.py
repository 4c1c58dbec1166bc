"""Waiting for events of processes."""

import os
import time
from collections.abc import Callable

from tests.processes import HANG_SECONDS


def wait_for(is_so: Callable[[], bool], seconds: float = HANG_SECONDS) -> None:
    """Wait until the condition holds. Fail after `seconds`."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Return whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
