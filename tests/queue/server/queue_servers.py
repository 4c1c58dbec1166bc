"""Servers of queues as processes, and jobs that record their starts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from oddlot.queue.server.client import QueueClient
from oddlot.queue.server.queue_folder import QueueFolder

ROOT = Path(__file__).parents[3]
PREDICTOR = "tests.queue.server.mean_predictor:MeanByName"
WAIT_SECONDS = 60.0
RECORD = 'echo "$ODDLOT_QUEUE_JOB $ODDLOT_QUEUE_ATTEMPT $$" >> "$STARTS"; '
"""Shell command that records the start of a job."""


def wait_for(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait until the condition is true, and return its value."""
    until = monotonic() + WAIT_SECONDS
    while monotonic() < until:
        if found := condition():
            return found
        sleep(0.02)
    raise AssertionError(f"not within {WAIT_SECONDS:g} s: {what or condition}")


def attempt_folder(folder: QueueFolder, job: int, attempt: int = 1) -> Path:
    """Wait for the folder of the newest attempt with this number, and return it."""
    found = list[Path]()

    def look() -> bool:
        found[:] = sorted(
            (folder.jobs / str(job)).glob(f"{attempt}-*"), key=lambda path: path.stat().st_mtime
        )
        return bool(found)

    wait_for(look, f"job {job} has a folder for attempt {attempt}")
    return found[-1]


class Server:
    """A server in its own process. It may be killed and started again on the same folder."""

    def __init__(self, path: Path, *options: str) -> None:
        self.folder, self.options = QueueFolder(path), options
        self.starts = path.with_name(f"{path.name}-starts")
        self.process: subprocess.Popen[str] | None = None
        self.deaths = 0

    def revive(self) -> None:
        """Start the server again if it has been killed."""
        if self.process is not None and self.process.poll() is not None:
            assert self.ended()[0] == -signal.SIGKILL
            self.deaths += 1
            self.start()

    def start(self, *, killed_at: str = "") -> "Server":
        """Start the server. `killed_at`: a point of `killed_server.py` at which it kills itself."""
        program = ["-m", "oddlot"] if not killed_at else ["-m", "tests.queue.server.killed_server", killed_at]
        arguments = ["queue", "serve", "--folder", str(self.folder.path), "--port", "0"]
        arguments += ["--predictor", PREDICTOR, *self.options]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            cwd=ROOT,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert killed_at or line.startswith("http://"), self.process.communicate()[1]
        return self

    @property
    def client(self) -> QueueClient:
        """A client of this server."""
        return QueueClient.find(self.folder)

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.ended()

    def stop(self) -> int:
        """Stop the server with SIGTERM, and return its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.ended()[0]

    def ended(self) -> tuple[int, str]:
        """Wait until the server has ended. Return its exit code and its standard error."""
        assert self.process is not None
        try:
            _, err = self.process.communicate(timeout=WAIT_SECONDS)
        finally:
            self.process.kill()
        return self.process.returncode, err

    def submit(self, *command: str, **options: Any) -> int:
        """Submit a command, and return the number of its job."""
        return int(self.client.post("/api/jobs", self.submission(*command, **options))["id"])

    def submission(self, *command: str, **options: Any) -> dict[str, Any]:
        """Return the submission of a command that may record its start."""
        env = {"PATH": os.environ["PATH"], "STARTS": str(self.starts)}
        own = {"id": uuid4().hex, "command": list(command), "cwd": "/", "env": env}
        return own | options

    def shell(self, script: str, **options: Any) -> int:
        """Submit a shell script that records its start first."""
        return self.submit("sh", "-c", RECORD + script, **options)

    def job(self, job: int) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/api/jobs/{job}")
        return found

    def wait(self, job: int, *states: str) -> dict[str, Any]:
        """Wait until a job has one of these states. Default: until it has ended."""
        wanted = states or ("finished", "failed", "cancelled")
        last: dict[str, Any] = {}

        def reached() -> bool:
            last.update(self.job(job))
            return last["state"] in wanted

        wait_for(reached, f"job {job} is one of {wanted}")
        return last

    def started(self) -> list[tuple[int, int, int]]:
        """Return the job, the attempt and the process id of each recorded start."""
        with suppress(FileNotFoundError):
            lines = self.starts.read_text().splitlines()
            return [(int(job), int(attempt), int(pid)) for job, attempt, pid in map(str.split, lines)]
        return []

    def claim(self, job: int, attempt: int = 1) -> dict[str, Any]:
        """Wait for the claim of an attempt, and return it."""
        path = attempt_folder(self.folder, job, attempt) / "claim.json"
        wait_for(path.exists, f"{path} exists")
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found

    def end_everything(self) -> None:
        """Kill the server and the processes of all attempts."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        kill_attempts(self.folder)


def kill_attempts(folder: QueueFolder) -> None:
    """Kill all processes of the attempts in a folder: they hold the locks."""
    held = {str(path) for path in folder.path.glob("jobs/*/*/lock")}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if any(str(one.readlink()) in held for one in (entry / "fd").iterdir()):
                    os.kill(int(entry.name), signal.SIGKILL)


@contextmanager
def queue_server(path: Path, options: Sequence[str] = ()) -> Iterator[Server]:
    """Run a server during the test, and kill it and its jobs afterwards."""
    server = Server(path, *options)
    try:
        yield server.start()
    finally:
        server.end_everything()
