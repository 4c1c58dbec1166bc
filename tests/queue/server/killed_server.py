"""`oddlot`, with a SIGKILL of this process at a point: `python -m tests.queue.server.killed_server POINT ...`.

A point is `before` or `after`, a function, and the number of the call, such as `after:spawn:2`.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from oddlot.cli.app import main
from oddlot.queue.server import processes
from oddlot.queue.server.job_store import JobStore
from oddlot.queue.server.processes import LocalProcesses

FUNCTIONS: dict[str, tuple[Any, str]] = {
    "add": (JobStore, "add"),
    "start": (JobStore, "start"),
    "run": (LocalProcesses, "start"),
    "spawn": (processes, "_spawn"),
    "find": (LocalProcesses, "find"),
    "end": (JobStore, "end"),
    "cancel": (JobStore, "cancel"),
    "preempt": (JobStore, "preempt"),
    "stop": (LocalProcesses, "stop"),
}


def kill_at(point: str) -> None:
    when, name, number = point.split(":")
    owner, attribute = FUNCTIONS[name]
    original: Callable[..., Any] = getattr(owner, attribute)
    calls = 0

    def replaced(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == int(number) and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = original(*given, **named)
        if calls == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(owner, attribute, replaced)


if __name__ == "__main__":
    kill_at(sys.argv.pop(1))
    main()
