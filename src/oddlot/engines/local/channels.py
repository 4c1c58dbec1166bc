"""The hub's sockets: wait for all of them, and send without waiting."""

import errno
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from oddlot.core.tasks import TaskId
from oddlot.engines.processes.worker_state import WorkerState


@dataclass(slots=True, eq=False, kw_only=True)
class ProcessHandle(WorkerState):
    """A process, from its fork to its end."""

    number: int
    """The number of its fork."""
    socket: socket.socket
    outbox: deque[bytes] = field(default_factory=deque)
    """Messages that wait until its socket is writable."""
    is_orphan: bool = False
    """Whether it continues after its fork server has ended."""

    @property
    def is_open(self) -> bool:
        """Whether its messages are still read."""
        return self.socket.fileno() != -1


@dataclass(slots=True, eq=False, kw_only=True)
class WorkerHandle(ProcessHandle):
    """A worker process."""

    tasks: dict[TaskId, int] = field(default_factory=dict)
    """Update block of each of its tasks."""


NO_ROOM = {errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS}
Handle = TypeVar("Handle", bound=ProcessHandle)


class Channels:
    """The sockets of the fork server and of the workers.

    `spin_seconds` is how long to look for messages before sleeping.
    """

    def __init__(self, spin_seconds: float) -> None:
        self.spin_seconds = spin_seconds
        self._selector = selectors.DefaultSelector()

    def add(self, sock: socket.socket, hear: Callable[[], None]) -> None:
        """Call `hear` when the socket is readable."""
        self._selector.register(sock, selectors.EVENT_READ, hear)

    def add_process(self, process: Handle, hear: Callable[[Handle], None]) -> None:
        """Call `hear(process)` when the process's socket is readable."""
        process.socket.setblocking(False)
        self.add(process.socket, partial(self._attend, process, partial(hear, process)))

    def remove(self, sock: socket.socket) -> None:
        """Stop waiting for the socket."""
        self._selector.unregister(sock)

    def wait(self, seconds: float) -> list[Callable[[], None]]:
        """Return what to call for the sockets that have something to read, after at most these seconds."""
        ready = self._selector.select(0)
        if self.spin_seconds:
            until = time.perf_counter() + min(seconds, self.spin_seconds)
            while not ready and time.perf_counter() < until:
                os.sched_yield()
                ready = self._selector.select(0)
        return [key.data for key, _ in ready or self._selector.select(seconds)]

    def send(self, worker: ProcessHandle, frame: bytes) -> None:
        """Send a message, or keep it until the socket has room: a worker with many tasks in flight reads slowly."""
        worker.outbox.append(frame)
        if len(worker.outbox) == 1:
            self._send_waiting(worker)

    def close(self) -> None:
        """Stop waiting for all sockets."""
        self._selector.close()

    def _send_waiting(self, worker: ProcessHandle) -> None:
        try:
            while worker.outbox:
                worker.socket.send(worker.outbox[0])
                worker.outbox.popleft()
        except OSError as error:
            if error.errno not in NO_ROOM:  # it is dying, and its end will be reported
                worker.outbox.clear()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.outbox else 0)
        key = self._selector.get_key(worker.socket)
        if key.events != events:
            self._selector.modify(worker.socket, events, key.data)

    def _attend(self, worker: ProcessHandle, hear: Callable[[], None]) -> None:
        """Handle a socket that is readable or writable."""
        if worker.outbox and worker.is_open:
            self._send_waiting(worker)
        hear()
