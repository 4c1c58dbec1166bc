"""A queue in this process, which runs real processes."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from oddlot.queue.core.machines import Machine
from oddlot.queue.core.policy_registry import policy_of
from oddlot.queue.core.scheduler import Scheduler
from oddlot.queue.predict.predictor_registry import taught_predictor
from oddlot.queue.server.attempt import CLAIM
from oddlot.queue.server.database import open_database
from oddlot.queue.server.job_store import Job, JobStore, State
from oddlot.queue.server.processes import LocalProcesses
from oddlot.queue.server.queue_folder import QueueFolder, user_name
from oddlot.queue.server.queue_service import QueueService
from oddlot.queue.server.resources import Devices
from oddlot.queue.server.submission import Submission
from tests.queue.server.queue_servers import PREDICTOR, attempt_folder, kill_attempts, wait_for

ENDED = (State.FINISHED, State.FAILED, State.CANCELLED)


class LocalQueue:
    """A service on a folder. It can be created again, as after a restart of the server."""

    def __init__(
        self,
        path: Path,
        *,
        policy: str = "fifo",
        gpus: int = 0,
        cpus: int = 2,
        grace: float = 1.0,
        pin: bool = False,
    ) -> None:
        self.folder, self.pin = QueueFolder(path), pin
        self.policy, self.gpus, self.cpus, self.grace = policy, gpus, cpus, grace
        self.folder.create()
        self.machine = "here"
        self.earlier: list[LocalProcesses] = []
        self.restart()

    def restart(self) -> None:
        """Create the service from the folder."""
        self.store = JobStore(open_database(self.folder.database))
        self.processes = LocalProcesses(self.folder, self.grace)
        self.earlier.append(self.processes)
        self.service = QueueService(
            self.store,
            Scheduler(policy_of(self.policy), [Machine(self.machine, self.gpus, self.cpus)]),
            self.processes,
            Devices(range(self.gpus), self.cpus, pin=self.pin),
            taught_predictor(PREDICTOR, self.store.history()),
        )

    def submit(self, *command: str, user: str = "", **options: Any) -> int:
        env = {"PATH": os.environ["PATH"], "HERE": str(self.folder.path)} | options.pop("env", {})
        asked = Submission(uuid4().hex, list(command), options.pop("cwd", "/"), env, **options)
        return self.service.submit(user or user_name(), asked).id

    def shell(self, script: str, **options: Any) -> int:
        return self.submit("sh", "-c", script, **options)

    def job(self, job: int) -> Job:
        return self.service.job(job)

    def until(self, job: int, *states: State) -> Job:
        """Tick until a job has one of these states. Default: until it has ended."""

        def reached() -> bool:
            self.service.tick()
            return self.job(job).state in (states or ENDED)

        wait_for(reached, f"job {job} reaches {states or ENDED}")
        return self.job(job)

    def path(self, job: int, attempt: int = 1) -> Path:
        return attempt_folder(self.folder, job, attempt)

    def output(self, job: int, attempt: int = 1) -> str:
        path = self.processes.output(self.store.attempt(job, attempt))
        return path.read_text() if path.exists() else ""

    def says(self, job: int, text: str, attempt: int = 1) -> None:
        """Wait until the output of an attempt contains a text."""

        def said() -> bool:
            self.service.tick()
            return text in self.output(job, attempt)

        wait_for(said, f"job {job} prints {text}")

    def claim(self, job: int, attempt: int = 1) -> dict[str, Any]:
        """Wait for the claim of an attempt, and return it."""
        path = self.path(job, attempt) / CLAIM
        wait_for(path.exists, f"{path} exists")
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found


@contextmanager
def local_queue(path: Path, **options: Any) -> Iterator[LocalQueue]:
    """Return a queue, and kill its jobs afterwards."""
    queue = LocalQueue(path, **options)
    try:
        yield queue
    finally:
        kill_attempts(queue.folder)
        for processes in queue.earlier:
            for child in processes.children.values():
                child.wait()
        queue.store.connection.close()
