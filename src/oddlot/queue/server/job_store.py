"""Jobs, attempts, history and tokens in the database. Each method that writes has committed when it returns."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from hmac import compare_digest
from typing import Self

from oddlot.queue.core.jobs import JobRequest, Part, Placement
from oddlot.queue.server.database import transaction
from oddlot.queue.server.submission import Submission
from oddlot.queue.server.training_command import job_name, train_arguments


class State(StrEnum):
    """State of a job or an attempt in the database."""

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Its processes ended without a result."""
    PREEMPTED = "preempted"
    VOID = "void"
    """Its command was never started."""


OPEN = (State.PENDING, State.RUNNING)
OPEN_IN_SQL = ", ".join(f"'{state}'" for state in OPEN)
PREEMPT, CANCEL = "preempt", "cancel"
"""Why an attempt must stop."""


@dataclass(frozen=True)
class Job:
    """A job in the database. Times in seconds since 1970, durations in seconds."""

    id: int
    user: str
    submission: str
    request: str
    submitted: float
    state: State
    predicted: float
    low: float
    high: float
    served: float
    """Seconds of earlier attempts with saved work."""
    attempt: int
    """Number of its last attempt. 0: never started."""
    cancelled: bool
    """Whether a user has cancelled it. Its attempt may still run."""
    started: float | None
    """Time of its first start."""
    ended: float | None
    exit: int | None
    reason: str

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Return the job of a row."""
        values = {**row, "state": State(row["state"]), "cancelled": bool(row["cancelled"])}
        return cls(**values)

    @cached_property
    def submitted_command(self) -> Submission:
        """What the user submitted."""
        return Submission.read(self.request)

    @property
    def restarts(self) -> bool:
        """Whether the command may be started again after a loss or a preemption."""
        return self.job_request.preemptible

    @property
    def trains(self) -> bool:
        """Whether the command is `oddlot train`, which saves its work on SIGTERM."""
        return train_arguments(self.submitted_command.command) is not None

    @cached_property
    def job_request(self) -> JobRequest:
        """The job for the scheduler and the predictor."""
        return request_of(self.user, self.submitted_command, self.submitted, self.id)


def request_of(user: str, asked: Submission, submitted: float, job: int) -> JobRequest:
    """Return a submission for the scheduler and the predictor."""
    restarts = train_arguments(asked.command) is not None if asked.requeue is None else asked.requeue
    return JobRequest(
        id=str(job),
        submitted=submitted,
        gpus=asked.gpus,
        cpus=asked.cpus,
        user=user,
        name=asked.name or job_name(asked.command),
        virtual_cluster=asked.virtual_cluster,
        preemptible=restarts,
    )


@dataclass(frozen=True)
class AttemptRow:
    """An attempt in the database."""

    job: int
    attempt: int
    state: State
    placement: Placement
    gpus: tuple[int, ...]
    """Indices of its GPUs."""
    cores: tuple[int, ...]
    """Indices of its cores. Empty: not bound to cores."""
    created: float
    stop: str
    """Why it must stop: preempt, cancel, or empty."""
    ended: float | None
    exit: int | None
    reason: str

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Return the attempt of a row."""
        found = json.loads(row["placement"])
        parts = tuple(Part(*part) for part in found["parts"])
        own = {**row, "state": State(row["state"]), "placement": parts}
        return cls(**own, gpus=tuple(found["gpus"]), cores=tuple(found["cores"]))

    def ran(self, ended: float) -> float:
        """Return the seconds until its end. The clock may have been set back."""
        return max(0.0, ended - self.created)


class JobStore:
    """The tables of the database."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    # --- jobs ----------------------------------------------------------------------------------

    def add(
        self, user: str, asked: Submission, now: float, prediction: tuple[float, float, float]
    ) -> tuple[Job, bool]:
        """Add a job, and return it, and whether it is new. A submission with a known id of this user is not added.

        `prediction`: seconds, and their 10 % and 90 % quantiles.
        """
        with transaction(self.connection) as change:
            row = change.execute(
                "SELECT * FROM jobs WHERE user = ? AND submission = ?", (user, asked.id)
            ).fetchone()
            if row is not None:
                return Job.of(row), False
            made = change.execute(
                "INSERT INTO jobs (user, submission, request, submitted, state, predicted, low, high) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (user, asked.id, asked.text(), now, State.PENDING, *prediction),
            )
            return self.job(int(made.lastrowid or 0)), True

    def number_after(self, job: int) -> None:
        """Give new jobs higher numbers than this one."""
        if job >= self.next_id():
            with transaction(self.connection) as change:
                change.execute("DELETE FROM sqlite_sequence WHERE name = 'jobs'")
                change.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('jobs', ?)", (job,))

    def next_id(self) -> int:
        """Return the number of the next job."""
        row = self.connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'").fetchone()
        return row["seq"] + 1 if row is not None else 1

    def job(self, job: int) -> Job:
        """Return a job. Raise KeyError for an unknown one."""
        row = self.connection.execute("SELECT * FROM jobs WHERE id = ?", (job,)).fetchone()
        if row is None:
            raise KeyError(job)
        return Job.of(row)

    def open_jobs(self) -> list[Job]:
        """Return the jobs that have not ended, in the order of submission."""
        query = f"SELECT * FROM jobs WHERE state IN ({OPEN_IN_SQL}) ORDER BY id"
        return [Job.of(row) for row in self.connection.execute(query)]

    def ended_jobs(self, count: int) -> list[Job]:
        """Return the jobs that ended last, the newest first."""
        query = f"SELECT * FROM jobs WHERE state NOT IN ({OPEN_IN_SQL}) ORDER BY ended DESC, id DESC LIMIT ?"
        return [Job.of(row) for row in self.connection.execute(query, (count,))]

    def predict(self, predictions: Mapping[int, tuple[float, float, float]]) -> None:
        """Write predictions of jobs: the seconds, and the 10 % and 90 % quantiles."""
        with transaction(self.connection) as change:
            change.executemany(
                "UPDATE jobs SET predicted = ?, low = ?, high = ? WHERE id = ?",
                [(*found, job) for job, found in predictions.items()],
            )

    def cancel(self, job: Job, now: float) -> None:
        """Note that a user has cancelled a job, and that its attempt must stop. A pending job has ended then."""
        with transaction(self.connection) as change:
            change.execute("UPDATE jobs SET cancelled = 1 WHERE id = ?", (job.id,))
            change.execute(
                "UPDATE attempts SET stop = ? WHERE job = ? AND state = ?", (CANCEL, job.id, State.RUNNING)
            )
            change.execute(
                "UPDATE jobs SET state = ?, ended = ? WHERE id = ? AND state = ?",
                (State.CANCELLED, now, job.id, State.PENDING),
            )

    # --- attempts ------------------------------------------------------------------------------

    def attempts(self, job: int) -> list[AttemptRow]:
        """Return the attempts of a job, the oldest first."""
        rows = self.connection.execute("SELECT * FROM attempts WHERE job = ? ORDER BY attempt", (job,))
        return [AttemptRow.of(row) for row in rows]

    def seconds_run(self, jobs: Iterable[int]) -> dict[int, float]:
        """Return the seconds of the ended attempts of jobs, by job. Attempts that were never started do not count."""
        rows = self.connection.execute(
            "SELECT job, sum(max(0, ended - created)) AS seconds FROM attempts "
            "WHERE job IN (SELECT value FROM json_each(?)) AND ended IS NOT NULL AND state <> ? GROUP BY job",
            (json.dumps([*jobs]), State.VOID),
        )
        return {row["job"]: row["seconds"] for row in rows}

    def attempt(self, job: int, attempt: int) -> AttemptRow:
        """Return an attempt. Raise KeyError for an unknown one."""
        row = self.connection.execute(
            "SELECT * FROM attempts WHERE job = ? AND attempt = ?", (job, attempt)
        ).fetchone()
        if row is None:
            raise KeyError(job, attempt)
        return AttemptRow.of(row)

    def running_attempts(self) -> list[AttemptRow]:
        """Return the attempts that have not ended."""
        rows = self.connection.execute("SELECT * FROM attempts WHERE state = ?", (State.RUNNING,))
        return [AttemptRow.of(row) for row in rows]

    def start(
        self,
        job: int,
        attempt: int,
        placement: Placement,
        gpus: Iterable[int],
        cores: Iterable[int],
        now: float,
    ) -> None:
        """Note an attempt before it is started."""
        parts = [(part.machine, part.gpus, part.cpus) for part in placement]
        text = json.dumps({"parts": parts, "gpus": [*gpus], "cores": [*cores]})
        with transaction(self.connection) as change:
            change.execute(
                "INSERT INTO attempts (job, attempt, state, placement, created) VALUES (?, ?, ?, ?, ?)",
                (job, attempt, State.RUNNING, text, now),
            )
            change.execute(
                "UPDATE jobs SET state = ?, attempt = ?, started = coalesce(started, ?) WHERE id = ?",
                (State.RUNNING, attempt, now, job),
            )

    def preempt(self, job: int, attempt: int) -> None:
        """Note that an attempt must stop, unless it is cancelled."""
        with transaction(self.connection) as change:
            change.execute(
                "UPDATE attempts SET stop = ? WHERE job = ? AND attempt = ? AND stop = ''",
                (PREEMPT, job, attempt),
            )

    def end(
        self,
        job: Job,
        attempt: int,
        state: State,
        now: float,
        *,
        code: int | None = None,
        reason: str = "",
        kept: float | None = None,
        duration: float | None = None,
    ) -> None:
        """Note the end of an attempt, and of its job unless `kept`, the seconds of saved work, is given.

        `duration`: seconds of the job for the history.
        """
        with transaction(self.connection) as change:
            change.execute(
                "UPDATE attempts SET state = ?, ended = ?, exit = ?, reason = ? WHERE job = ? AND attempt = ?",
                (state, now, code, reason, job.id, attempt),
            )
            if kept is not None:
                change.execute(
                    "UPDATE jobs SET state = ?, served = served + ? WHERE id = ?",
                    (State.PENDING, kept, job.id),
                )
                return
            change.execute(
                "UPDATE jobs SET state = ?, ended = ?, exit = ?, reason = ? WHERE id = ?",
                (State.FAILED if state is State.LOST else state, now, code, reason, job.id),
            )
            if duration is not None:
                self._remember(change, job.job_request, duration, now)

    # --- history, settings and tokens ----------------------------------------------------------

    @staticmethod
    def _remember(change: sqlite3.Connection, asked: JobRequest, duration: float, now: float) -> None:
        who = (int(asked.id), asked.user, asked.name, asked.virtual_cluster)
        change.execute(
            "INSERT OR REPLACE INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*who, asked.gpus, asked.cpus, asked.submitted, duration, now),
        )

    def remember(self, asked: JobRequest, duration: float, now: float) -> None:
        """Add a job that another scheduler has run to the history. Its id is a whole number."""
        with transaction(self.connection) as change:
            self._remember(change, asked, duration, now)

    def history(self) -> list[tuple[JobRequest, float, float]]:
        """Return the jobs of the history in the order of their ends, with their durations and ends."""
        rows = self.connection.execute("SELECT * FROM history ORDER BY ended, job")
        fields = ("user", "name", "virtual_cluster", "gpus", "cpus", "submitted")
        return [
            (
                JobRequest(id=str(row["job"]), **{name: row[name] for name in fields}),
                row["duration"],
                row["ended"],
            )
            for row in rows
        ]

    def replace_token(self, token: str, user: str, now: float) -> None:
        """Replace the token of a user. Only its hash is stored."""
        with transaction(self.connection) as change:
            change.execute("DELETE FROM tokens WHERE user = ?", (user,))
            change.execute("INSERT INTO tokens VALUES (?, ?, ?)", (hashed(token), user, now))

    def user_of(self, token: str) -> str | None:
        """Return the user of a token, or None. All stored hashes are compared, each in constant time."""
        given, found = hashed(token), None
        for row in self.connection.execute("SELECT hash, user FROM tokens"):
            if compare_digest(row["hash"], given):
                found = row["user"]
        return found


def hashed(token: str) -> str:
    """Return the hash of a token. Tokens are random, so the hash needs no salt."""
    return sha256(token.encode("utf-8", "replace")).hexdigest()
