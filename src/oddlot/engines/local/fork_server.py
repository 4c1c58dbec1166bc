"""The fork server: a process that has imported PyTorch but computed nothing. It forks workers in milliseconds.

The fork server ends with the hub, and workers end with the fork server: the system kills each with its parent. Peers of
a mesh are forked here too, but outlive the fork server. The processes that a worker started are killed before its end
is reported, so that none of them writes to memory that is reused.
"""

import array
import os
import select
import signal
import socket
import time
from contextlib import suppress
from importlib import import_module
from math import inf
from typing import Any, NoReturn

from oddlot.core.support.user_code import enter_worker
from oddlot.engines.local import orphans
from oddlot.engines.local.messages import LONGEST_BYTES, Say, decode, encode

WORKER = "oddlot.engines.local.worker"
"""Module of a worker's program."""
MAX_FDS = 8
LOOK_SECONDS = 0.02
"""Seconds between two checks for ended processes."""
END_SECONDS = 0.1
"""Seconds until a worker that closed its socket is killed, so that it can exit with an exit code first."""


def main(fd: int, parent: int) -> None:
    """Serve one hub through the socket `fd`: fork on request, report exits, and end with the hub."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to the process group; the hub handles them
    for number in (signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(wake)
    orphans.die_with_parent(parent, signal.SIGHUP)  # not SIGKILL: workers' children are ended first
    enter_worker()
    import_module(WORKER)  # imports PyTorch, once for all workers
    ForkServer(socket.socket(fileno=fd), (woken, wake), parent).serve()


class ForkServer:
    """A server that forks the workers of one hub, and ends them and all processes that they started."""

    def __init__(self, hub: socket.socket, pipe: tuple[int, int], parent: int) -> None:
        self.hub, self.pipe, self.parent = hub, pipe, parent
        self.pid = os.getpid()
        self.workers = set[int]()
        self.outliving = set[int]()
        """Workers that do not end with this process, unless the hub closes it."""
        self.lost: dict[int, float] = {}
        """Lost workers, and the times to kill them if they have not exited."""
        self.ended: dict[int, int | None] = {}
        """Exit codes that are not reported yet, because processes that the workers started may still run."""
        orphans.adopt()

    def serve(self) -> NoReturn:
        """Handle requests until the hub ends."""
        while os.getppid() == self.parent:
            wait = LOOK_SECONDS if self.ended or self.lost else None
            ready, _, _ = select.select([self.hub.fileno(), self.pipe[0]], [], [], wait)
            if self.pipe[0] in ready:
                os.read(self.pipe[0], 4096)
            self._bury()
            if self.hub.fileno() in ready:
                frame, fds = receive(self.hub)
                if not frame:
                    break
                kind, body = decode(frame)
                if kind is Say.QUIT:
                    self.outliving.clear()
                    break
                if kind is Say.KILL:
                    self.lost[body["pid"]] = time.monotonic() + END_SECONDS
                else:
                    self._fork(fds, body)
        self._end()

    def _fork(self, fds: list[int], body: dict[str, Any]) -> None:
        """Fork a process that has the descriptors `fds` and none of this process's, and report its id.

        A request with `modules` is for a peer. The modules are imported here, and the first module is its program.
        """
        program, *_ = [import_module(name) for name in body.get("modules", [WORKER])]
        try:
            child = os.fork()
        except OSError as error:  # no more processes, or no memory
            self._tell(encode(Say.NOT_FORKED, number=body["number"], reason=error.strerror))
            for given in fds:
                os.close(given)
            return
        if child == 0:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            for ours in (self.hub.detach(), *self.pipe):
                os.close(ours)
            with suppress(OSError):  # it was deleted
                os.chdir(body["folder"])
            program.main(fds, body, self.pid)
        for given in fds:
            os.close(given)
        orphans.lead_group(child)
        self.workers.add(child)
        if "modules" in body:
            self.outliving.add(child)
        self._tell(encode(Say.FORKED, number=body["number"], pid=child))

    def _bury(self) -> None:
        """Report the workers that have ended, once no process that they started shares the run's memory."""
        for worker in list(self.workers):
            killed = time.monotonic() >= self.lost.get(worker, inf)
            if killed:
                orphans.kill_group(worker)
            pid, status = os.waitpid(worker, os.WNOHANG)
            if pid:
                self.workers.remove(worker)
                self.outliving.discard(worker)
                orphans.kill_group(worker)
                code: int | None = os.waitstatus_to_exitcode(status)
                self.ended[worker] = None if killed and code == -signal.SIGKILL else code
        self.lost = {worker: at for worker, at in self.lost.items() if worker in self.workers}
        left = orphans.sharing(found) if (found := orphans.orphans(self.workers)) and self.ended else []
        orphans.kill(left)
        if not left:
            for worker, code in self.ended.items():
                self._tell(encode(Say.EXITED, pid=worker, code=code))
            self.ended.clear()

    def _tell(self, frame: bytes) -> None:
        with suppress(OSError):  # the hub has ended or closed its socket; its last requests are still read
            self.hub.send(frame)

    def _end(self) -> NoReturn:
        """Kill workers that do not outlive this process, and all that they started. Wait until they have exited."""
        for worker in self.workers - self.outliving:
            orphans.kill_group(worker)
        for worker in self.workers - self.outliving:
            os.waitpid(worker, 0)
        while left := orphans.orphans(self.outliving):
            orphans.kill(left)
            select.select([], [], [], LOOK_SECONDS)
        os._exit(0)


def receive(hub: socket.socket, flags: int = 0) -> tuple[bytes, list[int]]:
    """Return a frame and the descriptors sent with it; an empty frame if the other side closed."""
    frame, ancillary, fds = b"", list[tuple[int, int, bytes]](), array.array("i")
    for _ in range(2):
        with suppress(ConnectionResetError):  # it closed with unread messages; its own messages come next
            frame, ancillary, _, _ = hub.recvmsg(LONGEST_BYTES, socket.CMSG_LEN(MAX_FDS * 4), flags)
            break
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return frame, list(fds)
