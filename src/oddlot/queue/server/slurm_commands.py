"""Commands of Slurm: its jobs, its nodes, and priorities."""

import os
import re
import subprocess
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from oddlot.core.support.errors import UsageError
from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.core.machines import Machine
from oddlot.queue.traces.formats import GPUS

TIMEOUT = 60.0
FIELDS = "%A|%K|%u|%T|%C|%b|%D|%V|%S|%e|%Q|%r|%N|%a|%j"
"""Format of squeue: id, tasks of an array, user, state, cores, GPUs per node, nodes, submitted, started, ended,
priority, reason, node list, account, name."""
HELD = re.compile("Held")
ARRAY_RESULTS = (": No error", ": Job has already finished")
"""Ends of the lines that scontrol writes, beside exit code 1, for an array whose first tasks have ended."""


class SlurmError(UsageError):
    """A command of Slurm failed."""

    code = "slurm_error"


@dataclass(frozen=True)
class SlurmJob:
    """A job of Slurm, or all waiting tasks of a job array. Times in seconds since 1970."""

    id: int
    array_tasks: str
    """Numbers of the tasks, such as `1-8`. Empty for a job without an array."""
    user: str
    state: str
    cpus: int
    gpus: int
    submitted: float
    started: float | None
    ended: float | None
    priority: int
    is_held: bool
    """Whether a user or an administrator holds it."""
    nodes: str
    account: str
    name: str

    @property
    def request(self) -> JobRequest:
        """The job for a policy and a predictor. The account is its virtual cluster."""
        return JobRequest(
            id=str(self.id),
            submitted=self.submitted,
            gpus=self.gpus,
            cpus=self.cpus,
            user=self.user,
            name=self.name,
            virtual_cluster=self.account,
        )

    @property
    def is_pending(self) -> bool:
        """Whether it waits, and is not held."""
        return self.state == "PENDING" and not self.is_held

    @property
    def is_running(self) -> bool:
        """Whether it uses nodes."""
        return self.state in {"RUNNING", "COMPLETING", "CONFIGURING"}


def run(*command: str) -> str:
    """Return the output of a command of Slurm. Raise SlurmError if it fails."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
            env={**os.environ, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C.UTF-8"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"{command[0]} cannot be run: {reason}. Install Slurm's client commands, and set SLURM_CONF"
        raise SlurmError(message, command=command[0], reason=reason) from error
    if done.returncode:
        reason = done.stderr.strip()
        message = f"{command[0]} failed: {reason}"
        raise SlurmError(message, command=command[0], reason=reason)
    return done.stdout


def read_jobs() -> list[SlurmJob]:
    """Return the pending, the running and the recently ended jobs."""
    lines = run("squeue", "-h", "--states=all", "-o", FIELDS).splitlines()
    return [job for job in map(read_job, lines) if job is not None]


def read_job(line: str) -> SlurmJob | None:
    """Return the job of a line of squeue, or None if its id is no number."""
    parts = line.split("|", FIELDS.count("|"))
    if len(parts) <= FIELDS.count("|") or not parts[0].isdecimal():
        return None
    (
        number,
        tasks,
        user,
        state,
        cpus,
        gres,
        nodes,
        submitted,
        started,
        ended,
        priority,
        reason,
        where,
        account,
        name,
    ) = parts
    return SlurmJob(
        id=int(number),
        array_tasks="" if tasks == "N/A" else tasks,
        user=user,
        state=state,
        cpus=int(cpus),
        gpus=gpus_of(gres) * int(nodes),
        submitted=_time(submitted) or 0.0,
        started=_time(started),
        ended=_time(ended),
        priority=int(priority),
        is_held=bool(HELD.search(reason)) or priority == "0",
        nodes=where,
        account="" if account == "(null)" else account,
        name=name,
    )


def gpus_of(gres: str) -> int:
    """Return the number of GPUs in a list of resources, such as `gres:gpu:a100:2(IDX:0-1)`."""
    count = 0
    for part in gres.replace("gres:", "").split(","):
        resource = part.partition("(")[0]
        if found := GPUS.fullmatch(resource):
            count += int(found["count"])
        elif resource.removeprefix("gres/").split(":")[0] == "gpu":  # one, without a number
            count += 1
    return count


def read_nodes() -> list[Machine]:
    """Return the nodes that may run jobs."""
    found: dict[str, Machine] = {}
    for line in run("sinfo", "-h", "-N", "-o", "%N|%c|%G|%T").splitlines():
        name, cpus, gres, state = line.split("|")
        if state.rstrip("*~#%$@+").lower() not in {"down", "drained", "fail", "error", "unknown"}:
            found[name] = Machine(name, gpus_of(gres), int(cpus.rstrip("+")))
    return list(found.values())


def check_scheduler() -> None:
    """Raise SlurmError if Slurm does not reply, or if its scheduler ignores priorities."""
    found = re.search(r"^SchedulerType\s*=\s*(\S+)", run("scontrol", "show", "config"), re.MULTILINE)
    if found is not None and found[1] == "sched/builtin":
        message = (
            "Slurm starts jobs in the order of submission: set SchedulerType=sched/backfill in slurm.conf"
        )
        raise SlurmError(message, scheduler=found[1])


def set_priority(job: int, priority: int) -> None:
    """Set the priority of a pending job, or of the waiting tasks of an array. It needs the rights of an operator."""
    try:
        run("scontrol", "update", f"jobid={job}", f"priority={priority}")
    except SlurmError as error:
        lines = error.fields["reason"].splitlines()
        if not lines or not all(line.endswith(ARRAY_RESULTS) for line in lines):
            raise


def _time(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


def new_priorities(current: Sequence[int], most: int = 4_000_000_000) -> dict[int, int]:
    """Return new priorities, by index, so that priorities fall in this order. Few of them change.

    The longest part that falls already is kept. The others get numbers between their neighbors. Without room between
    them, all change. Priorities are from 1 to `most`.
    """
    kept = set(_falling([min(one, most) for one in current]))
    bounds = [(index, current[index]) for index in sorted(kept)]
    edges = [(-1, most + 1), *bounds, (len(current), 0)]
    found = dict[int, int]()
    for (first, high), (last, low) in pairwise(edges):
        count = last - first - 1
        if count and (high - low) // (count + 1) < 1:
            return {index: most - (index + 1) * (most // (len(current) + 1)) for index in range(len(current))}
        for place in range(1, count + 1):
            found[first + place] = high - place * (high - low) // (count + 1)
    return found


def _falling(values: Sequence[int]) -> list[int]:
    """Return the indices of a longest strictly falling part (patience sorting)."""
    lowest: list[int] = []
    """Negative last values of the best parts of each length."""
    last: list[int] = []
    before: list[int] = []
    for index, value in enumerate(values):
        length = bisect_left(lowest, -value)
        before.append(last[length - 1] if length else -1)
        lowest[length : length + 1] = [-value]
        last[length : length + 1] = [index]
    found, index = list[int](), last[-1] if last else -1
    while index >= 0:
        found.append(index)
        index = before[index]
    return found[::-1]
