"""A small process that has PyTorch imported and has computed nothing: workers are forked from it in milliseconds.

It lives as long as the hub, its workers as long as it: each asks the system to be killed with its parent.
"""

import array
import ctypes
import os
import select
import signal
import socket
import sys
from importlib import import_module
from typing import Any, NoReturn

from oddlot.engines.messages import LONGEST_BYTES, Say, decode, encode

PR_SET_PDEATHSIG = 1
MOST_FDS = 8


def die_with_parent(parent: int) -> None:
    """Be killed when the parent dies, where the system offers that; elsewhere workers notice the closed socket."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main(fd: int, parent: int) -> None:
    """Serve one hub through the socket `fd`: fork on request, report who has ended, end with the hub."""
    die_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to all of us, they are the hub's to answer
    import_module("oddlot.engines.worker")  # and PyTorch with it, once for all workers

    hub = socket.socket(fileno=fd)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    server, children = os.getpid(), set[int]()
    while True:
        ready, _, _ = select.select([hub.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(hub, children)
        if hub.fileno() in ready:
            frame, fds = receive(hub)
            if not frame or decode(frame)[0] is Say.QUIT:
                _end(children)
            body = decode(frame)[1]
            child = _fork(hub, (woken, wake), fds, body, server)
            children.add(child)
            _tell(hub, children, encode(Say.FORKED, number=body["number"], pid=child))


def _fork(
    hub: socket.socket, pipe: tuple[int, int], fds: list[int], body: dict[str, Any], server: int
) -> int:
    """Start a worker that has the descriptors `fds` and none of ours; its process id."""
    child = os.fork()
    if child == 0:
        from oddlot.engines import worker

        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for ours in (hub.detach(), *pipe):
            os.close(ours)
        worker.main(fds, body, parent=server)
    for given in fds:
        os.close(given)
    return child


def receive(hub: socket.socket) -> tuple[bytes, list[int]]:
    """One frame and the descriptors that came with it; an empty frame when the other side is gone."""
    try:
        frame, ancillary, _, _ = hub.recvmsg(LONGEST_BYTES, socket.CMSG_LEN(MOST_FDS * 4))
    except ConnectionResetError:
        return b"", []
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return frame, list(fds)


def _report_ended(hub: socket.socket, children: set[int]) -> None:
    for child in list(children):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            children.remove(child)
            _tell(hub, children, encode(Say.EXITED, pid=pid, code=os.waitstatus_to_exitcode(status)))


def _tell(hub: socket.socket, children: set[int], frame: bytes) -> None:
    try:
        hub.send(frame)
    except OSError:  # it has ended, or the run has
        _end(children)


def _end(children: set[int]) -> NoReturn:
    for child in children:
        os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)
    os._exit(0)
