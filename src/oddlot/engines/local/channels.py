"""The hub's sockets: handles of processes, waiting for messages, and sending without blocking."""

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
    """The state and the socket of a process, from its fork to its end."""

    number: int
    """Number of the request to the fork server."""
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
    """The handle of a worker process."""

    tasks: dict[TaskId, int] = field(default_factory=dict)
    """Update block of each open task."""


NO_ROOM = {errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS}
Handle = TypeVar("Handle", bound=ProcessHandle)


class Channels:
    """The sockets of the fork server and of the workers.

    `spin_seconds`: seconds to poll for messages before sleeping.
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
        """Wait at most these seconds for messages. Return the functions to call for the sockets that are ready."""
        ready = self._selector.select(0)
        if self.spin_seconds:
            until = time.perf_counter() + min(seconds, self.spin_seconds)
            while not ready and time.perf_counter() < until:
                os.sched_yield()
                ready = self._selector.select(0)
        return [key.data for key, _ in ready or self._selector.select(seconds)]

    def send(self, worker: ProcessHandle, frame: bytes) -> None:
        """Send a message, or keep it until the socket has room. A worker with many open tasks reads slowly."""
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
            if error.errno not in NO_ROOM:  # the process is ending; its end will be reported
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
