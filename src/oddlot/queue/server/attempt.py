"""The process that runs one attempt of a job: `python attempt.py FOLDER LOCK`.

The server takes the lock of the attempt and passes its file descriptor, `LOCK`. This process and the command inherit
it, so the lock is free only if the attempt was never started or all of its processes have ended. The process survives
the server. If its folder is deleted, it ends the command. It imports the standard library only, to start fast.
"""

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any

COMMAND, CLAIM, RESULT, OUTPUT, LOCK = "command.json", "claim.json", "result.json", "output.log", "lock"
"""Names of the files of an attempt."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a command that cannot be started, as in a shell."""
LIMITS = {
    "memory": resource.RLIMIT_AS,
    "cpu_seconds": resource.RLIMIT_CPU,
    "file_size": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "core_size": resource.RLIMIT_CORE,
}
"""Resource limits by name. Sizes are in bytes."""
RETRY_SECONDS = CHECK_SECONDS = 1.0
"""Seconds between two writes of a result while the disk is full, and between two looks for a deleted folder."""
PR_SET_CHILD_SUBREAPER = 36


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file, synced to the disk."""
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None if it does not run."""
    try:
        about = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if about[0] in {"Z", "X"} else int(about[19])


def boot_id() -> str:
    """Return the id of the machine's boot. Process ids of other boots mean nothing."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return ""


def descendants() -> list[int]:
    """Return the ids of all running processes below this one. Without /proc, the list is empty."""
    children: dict[int, list[int]] = {}
    with suppress(OSError):
        for name in os.listdir("/proc"):  # noqa: PTH208 - fast
            with suppress(OSError):
                if name.isdecimal():
                    about = Path(f"/proc/{name}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                    if about[0] not in {"Z", "X"}:
                        children.setdefault(int(about[1]), []).append(int(name))
    found, below = list[int](), [os.getpid()]
    while below:
        own = children.get(below.pop(), [])
        found += own
        below += own
    return found


class Attempt:
    """One attempt of a job."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder, self.lock = folder, lock
        self.order: dict[str, Any] = json.loads((folder / COMMAND).read_bytes())
        self.command = 0
        """Process id of the command, and of its group."""
        self.status: int | None = None
        self.must_stop = self.signal_sent = False
        self.woken = -1
        """Pipe with a byte for each signal."""
        self.kill_at: float | None = None

    def run(self) -> int:
        """Run the command, end processes that it leaves, and write the result."""
        flock(self.lock, LOCK_EX | LOCK_NB)
        self._listen()
        with suppress(OSError, AttributeError):  # orphans of the command become children of this process
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        error = self._start()
        self._wait()
        self._write_result(error)
        return 0

    def _listen(self) -> None:
        """Let SIGTERM and SIGCHLD end the waiting. `sigtimedwait` is missing on macOS."""
        self.woken, writer = os.pipe()
        os.set_blocking(self.woken, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._note_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _note_stop(self, *_: object) -> None:
        self.must_stop = True

    def _start(self) -> str:
        """Start the command after the claim is on the disk. Return why it did not start, or an empty string."""
        gate, opened = os.pipe()
        errors, failed = os.pipe()
        self.command = os.fork()
        if not self.command:
            os.close(opened)
            os.close(errors)
            _Command(self.order, self.lock, self.folder / OUTPUT).execute(gate, failed)
        os.close(gate)
        os.close(failed)
        about = {"pid": os.getpid(), "ticks": start_ticks(os.getpid()), "boot": boot_id(), "at": time.time()}
        claim = {**about, "command": self.command, "command_ticks": start_ticks(self.command)}
        try:
            write_json(self.folder / CLAIM, claim)
        except OSError:  # the gate stays closed
            (self.folder / CLAIM).unlink(missing_ok=True)
            raise
        os.write(opened, b"1")
        os.close(opened)
        with os.fdopen(errors, encoding="utf-8", errors="replace") as file:
            return file.read()

    def _wait(self) -> None:
        """Wait until no process of the attempt is left."""
        while True:
            self._reap()
            if self.status is not None:
                if not descendants():
                    return
                self._terminate()
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self._signal(signal.SIGKILL)
            late = self.kill_at is not None or self.status is not None
            if select.select([self.woken], [], [], 0.05 if late else CHECK_SECONDS)[0]:
                os.read(self.woken, 4096)
            # Its folder was deleted, so it can have no result.
            if self.must_stop or not os.fstat(self.lock).st_nlink:
                self._terminate()

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.command:
                    self.status = ended[1]

    def _terminate(self) -> None:
        """Send SIGTERM once. SIGKILL follows after the grace period."""
        if not self.signal_sent:
            self.signal_sent = True
            self.kill_at = time.monotonic() + float(self.order["grace"])
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.command, number)
        if number == signal.SIGKILL or self.status is not None:
            for pid in descendants():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _write_result(self, error: str) -> None:
        """Write the exit code, unless the folder was deleted.

        Try again while the disk is full: the attempt counts as running until then.
        """
        code = os.waitstatus_to_exitcode(self.status or 0)
        result: dict[str, Any] = {
            "exit": code if code >= 0 else 128 - code,
            "signal": -code if code < 0 else None,
        }
        result |= {"error": error, "ended": time.time()}
        while True:
            try:
                write_json(self.folder / RESULT, result)
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(RETRY_SECONDS)
            else:
                return


class _Command:
    """The forked process that becomes the command."""

    def __init__(self, order: dict[str, Any], lock: int, output: Path) -> None:
        self.order, self.lock, self.output = order, lock, output

    def execute(self, gate: int, failed: int) -> None:
        """Become the command once the gate opens. Write an error to `failed` and exit if that is impossible."""
        argv, code = self.order["command"], NOT_EXECUTABLE
        try:
            if not os.read(gate, 1):  # the parent ended before its claim
                os._exit(1)
            os.close(gate)
            self._prepare()
            os.execvpe(argv[0], argv, self.order["env"])
        except FileNotFoundError:
            code = NOT_FOUND
            message = f"{argv[0]}: command not found"
            if len(argv) == 1 and len(argv[0].split()) > 1:
                message = (
                    f"the program {argv[0]!r} was not found. Use sh -c {argv[0]!r} for a line of a shell"
                )
        except BaseException as error:  # noqa: BLE001 - this process must end here
            message = f"{argv[0]} cannot be started: {getattr(error, 'strerror', None) or error}"
        with suppress(OSError):
            os.write(2, f"{message}\n".encode())
        os.write(failed, message.encode())
        os._exit(code)

    def _prepare(self) -> None:
        os.setsid()
        streams = os.open(self.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (streams, 1), (streams, 2)):
            os.dup2(source, target)
        os.set_inheritable(self.lock, True)
        if cores := self.order.get("cores"):
            os.sched_setaffinity(0, cores)
        for name, value in self.order.get("limits", {}).items():
            resource.setrlimit(LIMITS[name], (value, value))
        if user := self.order.get("user"):
            os.setgroups(user["groups"])
            os.setgid(user["gid"])
            os.setuid(user["uid"])
        os.umask(0o022)
        try:
            os.chdir(self.order["cwd"])
        except OSError as error:
            raise RuntimeError(f"working folder {self.order['cwd']}: {error.strerror}") from error
        for number in (
            signal.SIGPIPE,
            signal.SIGXFSZ,
            signal.SIGINT,
            signal.SIGTERM,
            signal.SIGHUP,
            signal.SIGCHLD,
        ):
            signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(Attempt(Path(sys.argv[1]), int(sys.argv[2])).run())
