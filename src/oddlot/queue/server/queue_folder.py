"""The folder of a queue: its files, the lock of its server, and the owner's token."""

import json
import os
import pwd
import secrets
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from oddlot.checkpoint.local_storage import PRIVATE, open_to_append
from oddlot.core.support.errors import UsageError
from oddlot.queue.server.attempt import write_json

LOCK_SECONDS = 2.0
"""How long to wait for the lock: a process that a killed server was starting may hold it for a moment."""


def default_folder() -> Path:
    """Return the folder of this user's queue, or of the machine's queue for root."""
    if given := os.environ.get("ODDLOT_QUEUE"):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/oddlot-queue")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "oddlot-queue"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "oddlot-queue"


def user_name(uid: int | None = None) -> str:
    """Return the name of a system user. Default: the user of this process."""
    uid = os.geteuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@dataclass(frozen=True)
class QueueFolder:
    """Paths of a queue's files."""

    path: Path

    @property
    def database(self) -> Path:
        """SQLite file."""
        return self.path / "queue.sqlite"

    @property
    def token(self) -> Path:
        """Token of the server's user."""
        return self.path / "token"

    @property
    def address(self) -> Path:
        """Address of the running server, as JSON."""
        return self.path / "address.json"

    @property
    def jobs(self) -> Path:
        """Folder of the attempts."""
        return self.path / "jobs"

    def attempt(self, job: int, attempt: int, created: float) -> Path:
        """Return the folder of an attempt. The time of its creation tells attempts apart that an older copy of the
        database numbers again."""
        return self.jobs / str(job) / f"{attempt}-{round(1e6 * created)}"

    def last_job(self) -> int:
        """Return the largest number of a job with a folder, or 0. The database may be an older copy, or new."""
        numbers = (int(path.name) for path in self.jobs.glob("*") if path.name.isdecimal())
        return max(numbers, default=0)

    def create(self) -> None:
        """Create the folder. Raise UsageError if that is impossible."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"{self.path} cannot be used for a queue: {reason}. Name another folder with --folder"
            raise UsageError(message, "unwritable_folder", path=str(self.path), reason=reason) from error

    def lock(self, closing: ExitStack) -> None:
        """Hold the server's lock until `closing` is closed. Raise UsageError if another server holds it."""
        try:
            file = closing.enter_context(open_to_append(self.path / "server.lock"))
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"{self.path} cannot be used for a queue: {reason}. Name another folder with --folder"
            raise UsageError(message, "unwritable_folder", path=str(self.path), reason=reason) from error
        until = monotonic() + LOCK_SECONDS
        while True:
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                if monotonic() < until:
                    sleep(0.05)
                    continue
                message = f"another server uses {self.path}: stop it, or name another folder with --folder"
                raise UsageError(message, "queue_in_use", path=str(self.path)) from None
            return

    def owner_token(self) -> str:
        """Return the token of the server's user. It is created at the first start."""
        try:
            return self.token.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            token = new_token()
            temporary = self.token.with_name(".token.new")
            temporary.unlink(missing_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{token}\n")
                file.flush()
                os.fsync(descriptor)
            temporary.replace(self.token)
            return token

    def write_address(self, host: str, port: int) -> None:
        """Write where the server listens."""
        write_json(self.address, {"url": f"http://{host}:{port}", "pid": os.getpid()})

    def read_address(self) -> dict[str, Any] | None:
        """Return where the server listens or listened last, or None if it never started."""
        try:
            found = json.loads(self.address.read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(32)
