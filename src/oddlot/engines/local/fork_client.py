"""The client of the fork server, for hubs and launchers: it requests processes and receives their exits.

Also fork servers that are started early, before the run that uses them.
"""

import errno
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from oddlot.core.support.errors import JobError
from oddlot.engines.local.messages import LONGEST_BYTES, Say, decode, encode

_MAIN = "import sys; sys.path[:] = {path!r}; from oddlot.engines.local.fork_server import main; main({fd}, {parent})"


def packet_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets that preserve the boundaries of messages."""
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:  # macOS has no SEQPACKET: only the fork server reports the end of a process there
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)


@contextmanager
def named_limit() -> Iterator[None]:
    """Turn the error of too many open files into a JobError with the limit."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS}:
            raise
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        message = f"too many open files: the limit is {limit:,}. Raise it (ulimit -n), or use fewer workers"
        raise JobError(message, "too_many_open_files", limit=limit) from None


class ServerEnded(JobError):
    """The fork server ended, and all workers with it."""


class ForkClient:
    """A fork server and the hub's connection to it. It starts immediately, because importing PyTorch takes seconds."""

    def __init__(self) -> None:
        self.forks = 0
        self._start()

    def restart(self) -> None:
        """Replace a fork server that has ended."""
        self.socket.close()
        self.process.kill()
        self.process.wait()
        self._start()

    def _start(self) -> None:
        self.socket, theirs = packet_pair()
        code = _MAIN.format(path=sys.path, fd=theirs.fileno(), parent=os.getpid())
        # OpenMP threads that wait must sleep. If processes share the cores, spinning threads make a step of two
        # threads a hundred times slower.
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
        # Workers print to stderr: stdout belongs to the user's program.
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,
            env=environment,
        )
        theirs.close()

    def fork(self, index: int, fds: list[int], **more: Any) -> tuple[int, socket.socket]:
        """Request a process. Return the number of the request and this end of the process's socket.

        The process gets the other end of the socket, the descriptors `fds` and this program's working folder. `more`
        has the `modules` of a program other than a worker's.
        Raise ServerEnded if the fork server ended.
        """
        self.forks += 1
        with named_limit():
            ours, theirs = packet_pair()
        try:
            frame = encode(Say.FORK, number=self.forks, index=index, folder=_working_folder(), **more)
            with named_limit():  # descriptors in transit are limited too
                socket.send_fds(self.socket, [frame], [theirs.fileno(), *fds])
        except JobError:
            ours.close()
            raise
        except OSError:
            ours.close()
            code = self.process.wait()
            how = "was killed" if code < 0 else f"has ended (exit code {code}); see its output above"
            raise ServerEnded(f"the fork server {how}", "fork_server_ended", exit_code=code) from None
        finally:
            theirs.close()
        return self.forks, ours

    def kill(self, pid: int) -> None:
        """Kill a lost worker that may still run, and all processes that it started. Its exit follows."""
        with suppress(OSError):  # the fork server ended: `receive` reports it
            self.socket.send(encode(Say.KILL, pid=pid))

    def receive(self) -> tuple[Say, dict[str, Any]] | None:
        """Return the next message, or None. Raise ServerEnded if the fork server ended."""
        frame = b""
        with suppress(ConnectionResetError):
            try:
                frame = self.socket.recv(LONGEST_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
        if not frame:
            message = "the fork server was killed, and all workers with it. Resume the run"
            raise ServerEnded(message, "fork_server_killed")
        return decode(frame)

    def close(self) -> None:
        """End the fork server and all workers, and wait until they have exited."""
        try:
            self.socket.send(encode(Say.QUIT))
        except OSError:
            self.process.kill()  # its workers are killed with it
        self.socket.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _working_folder() -> str:
    """Return this program's working folder, or an empty string if it was deleted."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


_early: list[ForkClient] = []


def start_early() -> None:
    """Start a fork server for the next run, so that it imports PyTorch while this process does."""
    _early.append(ForkClient())


def take_early() -> ForkClient | None:
    """Return the fork server that was started early, or None."""
    return _early.pop() if _early else None


def end_early() -> None:
    """End the fork server that was started early, if no run has taken it."""
    while fork_server := take_early():
        fork_server.socket.close()
        fork_server.process.kill()
        fork_server.process.wait()
