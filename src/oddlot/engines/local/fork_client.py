"""The hub's or launcher's side of the fork server: requests processes and receives their exits."""

import errno
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from oddlot.core.support.errors import JobError
from oddlot.engines.local.messages import LONGEST_BYTES, Say, decode, encode

_MAIN = "import sys; sys.path[:] = {path!r}; from oddlot.engines.local.fork_server import main; main({fd}, {parent})"


def packet_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that keep messages apart."""
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:  # macOS has no SEQPACKET; there the fork server alone tells of an end
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)


@contextmanager
def named_limit() -> Iterator[None]:
    """Raise JobError: this process has too many open files."""
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
    """The fork server, as the hub sees it. It starts immediately: importing PyTorch there takes seconds."""

    def __init__(self) -> None:
        self.forks = 0
        self._start()

    def restart(self) -> None:
        """Start another fork server in place of one that has ended."""
        self.socket.close()
        self.process.kill()
        self.process.wait()
        self._start()

    def _start(self) -> None:
        self.socket, theirs = packet_pair()
        code = _MAIN.format(path=sys.path, fd=theirs.fileno(), parent=os.getpid())
        # Threads that wait must sleep: where hub, workers and others share the cores, OpenMP's habit of spinning
        # makes a step of two threads a hundred times slower.
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
        # Workers print to stderr: stdout belongs to the program that runs us.
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,
            env=environment,
        )
        theirs.close()

    def fork(self, index: int, fds: list[int], **more: Any) -> tuple[int, socket.socket]:
        """Request a process. Return its number and our end of its socket. `fds` follow its own end of the socket.

        `more` is for a process that is no worker: the `modules` of its program.
        Raise ServerEnded if the fork server ended.
        """
        self.forks += 1
        with named_limit():
            ours, theirs = packet_pair()
        try:
            frame = encode(Say.FORK, number=self.forks, index=index, **more)
            with named_limit():  # of descriptors that are on their way, too
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
        """End a worker that is lost but may still run, and all that it has started; its exit follows."""
        with suppress(OSError):  # the fork server ended, which `receive` reports
            self.socket.send(encode(Say.KILL, pid=pid))

    def receive(self) -> tuple[Say, dict[str, Any]] | None:
        """Return the next message, or None if there is none. Raise ServerEnded if the fork server ended."""
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
        """End the fork server and every worker, and wait until they have exited."""
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


_early: list[ForkClient] = []


def start_early() -> None:
    """Start a fork server for the next run, so that it imports PyTorch while this process does."""
    _early.append(ForkClient())


def take_early() -> ForkClient | None:
    """Return the fork server that was started early, if there is one."""
    return _early.pop() if _early else None


def end_early() -> None:
    """End the fork server that no run has taken."""
    while fork_server := take_early():
        fork_server.socket.close()
        fork_server.process.kill()
        fork_server.process.wait()
