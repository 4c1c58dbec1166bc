"""Attempts as processes on this machine: start, stop, and find again."""

import fcntl
import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any, Protocol

from oddlot.core.support.errors import UsageError
from oddlot.queue.server import attempt as attempt_process
from oddlot.queue.server.attempt import CLAIM, COMMAND, LOCK, OUTPUT, RESULT, boot_id, start_ticks
from oddlot.queue.server.job_store import AttemptRow, Job
from oddlot.queue.server.queue_folder import QueueFolder, user_name

LOOK_SECONDS = 1.0
"""Seconds between two looks at the lock of an attempt."""
FOLDER_SECONDS = 10.0
"""Seconds in which a working folder must answer."""


class CannotStart(Exception):
    """The machine could not start an attempt. It may be tried again. `lasts`: the cause does not pass by itself."""

    def __init__(self, reason: str, *, lasts: bool = False) -> None:
        super().__init__(reason)
        self.lasts = lasts


class Found(StrEnum):
    """What is known about an attempt."""

    RUNNING = "running"
    ENDED = "ended"
    """It has a result."""
    LOST = "lost"
    """Its processes have ended without a result."""
    ABSENT = "absent"
    """Its command was never started, and never will be."""


@dataclass(frozen=True)
class Result:
    """The result of an attempt."""

    exit: int
    """Exit code. 128 + N after the signal N."""
    ended: float
    error: str = ""
    """Why the command was not started."""

    @property
    def ended_by_itself(self) -> bool:
        """Whether the command ran and ended with a code of its own, and not by a signal, such as that of a limit."""
        return not self.error and self.exit <= 128


class Runner(Protocol):
    """Starts, stops and finds attempts. A server that was restarted finds the attempts of the previous one."""

    @property
    def grace(self) -> float:
        """Seconds from SIGTERM to SIGKILL."""

    def prepare(self, job: int, attempt: int, created: float) -> None:
        """Create what shows that an attempt may have started, before the attempt is committed."""

    def discard(self, job: int, attempt: int, created: float) -> None:
        """Delete what `prepare` created: the attempt could not be committed."""

    def start(self, job: Job, attempt: AttemptRow) -> None:
        """Start an attempt. Raise CannotStart if that is impossible now, and then nothing was started."""

    def stop(self, attempt: AttemptRow) -> None:
        """Send SIGTERM to an attempt, once, and SIGKILL after a grace period."""

    def find(self, attempt: AttemptRow) -> tuple[Found, Result | None]:
        """Return the state of an attempt, and the result of an ended one."""

    def last_output(self, attempt: AttemptRow) -> float:
        """Return when an attempt last wrote output, or was created."""


class LocalProcesses:
    """Runs attempts on this machine.

    Parameters
    ----------
    folder
        Folder of the queue.
    grace
        Seconds from SIGTERM to SIGKILL.
    """

    def __init__(self, folder: QueueFolder, grace: float) -> None:
        self.folder, self.grace = folder, grace
        self.children: dict[Path, subprocess.Popen[bytes]] = {}
        """Processes that this server has started."""
        self.claims: dict[Path, dict[str, Any]] = {}
        """Claims of running attempts, in case that a folder is deleted."""
        self.looks: dict[Path, float] = {}
        """When to look at the lock of an attempt again."""
        self.kills: dict[Path, float] = {}
        """When to kill commands that have lost the process that watches them."""
        self.not_started: set[Path] = set()
        """Folders of attempts that this server could not start."""

    def prepare(self, job: int, attempt: int, created: float) -> None:
        """Create the folder of an attempt: a later server takes an attempt without its folder for lost."""
        with suppress(OSError):  # `start` reports it
            self.folder.attempt(job, attempt, created).mkdir(parents=True, exist_ok=True, mode=0o700)

    def discard(self, job: int, attempt: int, created: float) -> None:
        """Delete the empty folder of an attempt."""
        with suppress(OSError):
            self.folder.attempt(job, attempt, created).rmdir()

    def start(self, job: Job, attempt: AttemptRow) -> None:
        path = self.folder.attempt(attempt.job, attempt.attempt, attempt.created)
        asked = job.submitted_command
        env = {**asked.env, "ODDLOT_QUEUE_JOB": str(job.id), "ODDLOT_QUEUE_ATTEMPT": str(attempt.attempt)}
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, attempt.gpus))
        order: dict[str, Any] = {
            "command": asked.command,
            "cwd": asked.cwd,
            "env": env,
            "limits": asked.limits,
        }
        order |= {"grace": self.grace, "cores": attempt.cores}
        self.not_started.add(path)
        try:
            if job.user != user_name():
                order["user"] = system_user(job.user)
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path / COMMAND, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
                json.dump(order, file)
            self.children[path] = _spawn(path)
        except OSError as error:
            raise CannotStart(str(error)) from error
        self.not_started.discard(path)

    def stop(self, attempt: AttemptRow) -> None:
        path = self.folder.attempt(attempt.job, attempt.attempt, attempt.created)
        child, claim = self.children.get(path), self._claim(path)
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGTERM)
        elif claim and _is_running(claim, "pid", "ticks"):
            with suppress(ProcessLookupError):
                os.kill(claim["pid"], signal.SIGTERM)
        elif claim and path not in self.kills:  # the watching process was killed
            self.kills[path] = monotonic() + self.grace
            self._signal_command(claim, signal.SIGTERM)

    def find(self, attempt: AttemptRow) -> tuple[Found, Result | None]:
        path = self.folder.attempt(attempt.job, attempt.attempt, attempt.created)
        child = self.children.get(path)
        ended = child is not None and child.poll() is not None
        if (result := _read(path / RESULT)) is not None:
            self._forget(path)
            return Found.ENDED, Result(result["exit"], result["ended"], result.get("error", ""))
        if not ended and self.looks.get(path, 0.0) > monotonic():
            return Found.RUNNING, None
        self.looks[path] = monotonic() + LOOK_SECONDS
        claim = self._claim(path)
        if claim and self.kills.get(path, monotonic() + 1) < monotonic():
            self._signal_command(claim, signal.SIGKILL)
        is_alive = child is not None and not ended
        if is_alive or _is_locked(path) or (claim and _has_process(claim)):
            return Found.RUNNING, None
        if (path / RESULT).exists():  # written since the look above
            return self.find(attempt)
        if not path.exists() and path not in self.not_started:
            return self._find_without_folder(path)
        has_started = (path / CLAIM).exists() or claim is not None
        self._forget(path)
        return Found.LOST if has_started else Found.ABSENT, None

    def _find_without_folder(self, path: Path) -> tuple[Found, None]:
        """Return the state of an attempt whose folder was deleted. Its processes still hold the lock."""
        if _has_holder(path):
            return Found.RUNNING, None
        self._forget(path)
        return Found.LOST, None

    def last_output(self, attempt: AttemptRow) -> float:
        with suppress(OSError):
            return max(attempt.created, self.output(attempt).stat().st_mtime)
        return attempt.created

    def check_user(self, name: str) -> None:
        """Raise UsageError unless this server can run jobs of a system user."""
        if os.geteuid() != 0:
            message = (
                f"only a server of root runs jobs of other users, and this one is a server of {user_name()}"
            )
            raise UsageError(message, "not_root", user=name, server=user_name())
        try:
            system_user(name)
        except CannotStart:
            message = f"there is no system user {name}"
            raise UsageError(message, "unknown_user", user=name) from None

    def check_folder(self, user: str, path: str) -> None:
        """Raise UsageError unless a user can work in a folder of this machine."""
        test = ["test", "-d", path, "-a", "-x", path]
        ids: dict[str, Any] = {}
        if user != user_name():
            with suppress(CannotStart):  # the start of the job reports an unknown user
                found = system_user(user)
                ids = {"user": found["uid"], "group": found["gid"], "extra_groups": found["groups"]}
        child = subprocess.Popen(test, cwd="/", stdin=subprocess.DEVNULL, **ids)
        try:
            problem = f"does not exist, or {user} cannot use it" if child.wait(FOLDER_SECONDS) else ""
        # The network of the folder is down, and the process ends when it is back.
        except subprocess.TimeoutExpired:
            child.kill()
            Thread(target=child.wait, daemon=True).start()
            problem = f"has not answered within {FOLDER_SECONDS:g} s"
        if problem:
            message = f"the working folder {path} {problem}: name another one with --cwd"
            raise UsageError(message, "unusable_folder", path=path, user=user)

    def output(self, attempt: AttemptRow) -> Path:
        """Return the path of an attempt's output."""
        return self.folder.attempt(attempt.job, attempt.attempt, attempt.created) / OUTPUT

    def unknown(self, known: Iterable[AttemptRow]) -> list[Path]:
        """Return the folders of attempts that still run, and are not among the known ones."""
        paths = {self.folder.attempt(one.job, one.attempt, one.created) for one in known}
        return sorted(path for path in self.folder.jobs.glob("*/*") if path not in paths and _is_locked(path))

    def _claim(self, path: Path) -> dict[str, Any] | None:
        """Return the claim of an attempt, also if its folder was deleted since the last look."""
        found = _read(path / CLAIM)
        if found is not None:
            self.claims[path] = found
            return found
        return None if path.exists() else self.claims.get(path)

    def _forget(self, path: Path) -> None:
        child = self.children.pop(path, None)
        if child is not None:
            with suppress(subprocess.TimeoutExpired):  # it exits after its result, or has exited
                child.wait(timeout=5)
        self.claims.pop(path, None)
        self.looks.pop(path, None)
        self.kills.pop(path, None)
        self.not_started.discard(path)

    @staticmethod
    def _signal_command(claim: Mapping[str, Any], number: signal.Signals) -> None:
        if _is_running(claim, "command", "command_ticks"):
            with suppress(ProcessLookupError):
                os.killpg(claim["command"], number)


def _spawn(path: Path) -> "subprocess.Popen[bytes]":
    """Start the process of an attempt. It inherits the attempt's lock."""
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", attempt_process.__file__, str(path), str(lock)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(lock,),
            start_new_session=True,
            cwd="/",
        )
    finally:
        os.close(lock)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _is_running(claim: Mapping[str, Any], pid: str, ticks: str) -> bool:
    """Return whether a process of a claim still runs. Ids may belong to other processes since."""
    return claim["boot"] == boot_id() and claim[ticks] is not None and start_ticks(claim[pid]) == claim[ticks]


def _has_process(claim: Mapping[str, Any]) -> bool:
    """Return whether a process of a claim still runs. A command may have given up the lock."""
    return _is_running(claim, "pid", "ticks") or _is_running(claim, "command", "command_ticks")


def _has_holder(path: Path) -> bool:
    """Return whether a process holds the lock of a deleted folder. Without /proc, none is found."""
    lock = str(path.resolve() / LOCK)
    return any(
        file.removesuffix(" (deleted)") == lock
        for process in Path("/proc").glob("[0-9]*")
        for file in _open_files(process)
    )


def _open_files(process: Path) -> Iterator[str]:
    """Yield the paths of the open files of a process."""
    with suppress(OSError):
        for link in (process / "fd").iterdir():
            with suppress(OSError):
                yield str(link.readlink())


def _is_locked(path: Path) -> bool:
    try:
        lock = os.open(path / LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def system_user(name: str) -> dict[str, Any]:
    """Return the ids and groups of a system user. Raise CannotStart for an unknown one."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise CannotStart(f"there is no system user {name}", lasts=True) from None
    groups = os.getgrouplist(name, found.pw_gid)
    return {"uid": found.pw_uid, "gid": found.pw_gid, "groups": groups}
