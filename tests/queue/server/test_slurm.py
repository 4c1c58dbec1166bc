"""The queue in front of Slurm: priorities of pending jobs of a real slurmctld, and the rules without one."""

import os
import random
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from oddlot.core.support.errors import UsageError
from oddlot.queue.core.jobs import QueuedJob
from oddlot.queue.core.policy import Policy, Usage
from oddlot.queue.core.policy_registry import policy_of
from oddlot.queue.predict.predictor_registry import taught_predictor
from oddlot.queue.server import slurm_queue
from oddlot.queue.server.database import DiskFull, open_database
from oddlot.queue.server.job_store import JobStore
from oddlot.queue.server.slurm_commands import (
    SlurmJob,
    check_scheduler,
    gpus_of,
    new_priorities,
    read_job,
    read_jobs,
    set_priority,
)
from oddlot.queue.server.slurm_queue import SlurmQueue
from tests.queue.server.queue_servers import PREDICTOR, queue_server, wait_for
from tests.queue.server.slurm_cluster import priorities, reason_to_skip, slurm_cluster, submit
from tests.transcripts import raises

needs_slurm = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("SLURM_TIME_FORMAT")
    os.environ["SLURM_TIME_FORMAT"] = "%s"
    with slurm_cluster(tmp_path_factory.mktemp("slurm")):
        yield
    os.environ.pop("SLURM_TIME_FORMAT")
    if before is not None:
        os.environ["SLURM_TIME_FORMAT"] = before


def a_queue(path: Path, policy: str = "qssf") -> SlurmQueue:
    store = JobStore(open_database(path / "queue.sqlite"))
    return SlurmQueue(store, policy_of(policy), taught_predictor(PREDICTOR, store.history()), None)


def is_in(job: int, state: str) -> bool:
    return state_of(job) == state


def state_of(job: int) -> str:
    return next((one.state for one in read_jobs() if one.id == job), "")


def cancel(*jobs: int) -> None:
    subprocess.run(["scancel", *map(str, jobs)], check=True, timeout=60)


@needs_slurm
def test_slurm_starts_jobs_in_the_learnt_order(cluster: None, tmp_path: Path) -> None:
    queue = a_queue(tmp_path)
    for name, seconds in (("long", 3), ("short", 1)):
        job = submit(name, f"sleep {seconds}")
        wait_for(partial(is_in, job, "COMPLETED"), "the job has completed")
    queue.tick()
    durations = {request.name: duration for request, duration, _ in queue.store.history()}
    assert durations["short"] < durations["long"]
    running = submit("blocker", "sleep 600")
    wait_for(lambda: state_of(running) == "RUNNING")
    long, short, held = (
        submit("long", "sleep 600"),
        submit("short", "true"),
        submit("short", "true", "--hold"),
    )
    assert priorities()[long] > priorities()[short]
    queue.tick()
    assert priorities()[short] > priorities()[long] > priorities()[held] == 0
    view = queue.view("me", 10)
    states = {job["id"]: job["state"] for job in view["jobs"]}
    assert states == {running: "running", long: "pending", short: "pending", held: "held"}
    assert [job["id"] for job in view["jobs"]][1:3] == [short, long]
    assert {job["id"]: job["expected_start"] for job in view["jobs"]}[short][1] > view["now"]
    cancel(running)
    wait_for(lambda: state_of(short) == "COMPLETED" and state_of(long) == "RUNNING")
    ends = {job.id: job for job in read_jobs()}
    assert ends[short].started <= ends[long].started  # type: ignore[operator]
    cancel(long, held)
    queue.store.connection.close()


@needs_slurm
def test_arrays_are_learned_and_ordered(cluster: None, tmp_path: Path) -> None:
    """The second array gets its priority after one of its tasks has ended."""
    queue = a_queue(tmp_path)
    known = submit("short", "true", "--array=1-2")
    wait_for(lambda: sum(one.name == "short" and one.state == "COMPLETED" for one in read_jobs()) >= 2)
    slow = submit(
        "slow", "if [ $SLURM_ARRAY_TASK_ID = 1 ]; then sleep 4; else sleep 600; fi", "--array=1-4%1"
    )
    wait_for(lambda: {one.state for one in read_jobs() if one.name == "slow"} >= {"COMPLETED", "RUNNING"})
    short = submit("short", "true", "--array=5,7")
    before = priorities()
    assert before[slow] > before[short]
    queue.tick()
    learned = [request.name for request, _, _ in queue.store.history()]
    assert learned.count("slow") == 1
    assert learned.count("short") >= 2
    after = priorities()
    assert after[short] > after[slow]
    set_priority(slow, 5)
    assert priorities()[slow] == 5
    assert {job["name"] for job in queue.view("me", 0)["jobs"]} >= {"slow[3-4%1]", "short[5,7]"}
    cancel(known, slow, short)
    queue.store.connection.close()


@needs_slurm
def test_server_orders_jobs_and_lists_them(cluster: None, tmp_path: Path) -> None:
    blocker = submit("blocker", "sleep 600")
    wait_for(lambda: state_of(blocker) == "RUNNING")
    job = submit("later", "true")
    with queue_server(tmp_path / "queue", ["--slurm"]) as server:
        wait_for(lambda: job in [one["id"] for one in server.client.get("/api/queue")["jobs"]])
        with raises(UsageError, "slurm_queue"):
            server.submit("true")
    cancel(blocker, job)


def test_scheduler_that_ignores_priorities_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'SchedulerType           = sched/builtin'\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with raises(UsageError, "slurm_error", scheduler="sched/builtin"):
        check_scheduler()


def test_slurm_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises(UsageError, "slurm_error", command="squeue"):
        read_jobs()


# --- without Slurm -------------------------------------------------------------------------------


class HoldsBack(Policy):
    """The longest name first. Jobs of eve are held back."""

    def priority(self, job: QueuedJob, now: float, usage: Usage) -> float | None:
        return None if job.request.user == "eve" else -len(job.request.name)


@pytest.fixture
def fake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[SlurmQueue, list[str], list[int]]]:
    """Return a queue, the lines of its squeue, and the jobs with a new priority, in their order."""
    queue, lines, changed = a_queue(tmp_path), list[str](), list[int]()
    monkeypatch.setattr(slurm_queue, "read_jobs", lambda: list(filter(None, map(read_job, lines))))
    monkeypatch.setattr(slurm_queue, "read_nodes", list)
    monkeypatch.setattr(slurm_queue, "set_priority", lambda job, _: changed.append(job))
    yield queue, lines, changed
    queue.store.connection.close()


def pending(job: int, name: str, submitted: int = 1, user: str = "ada") -> str:
    return f"{job}|N/A|{user}|PENDING|1|N/A|1|{submitted}|N/A|N/A|9|Priority||team|{name}"


def test_job_that_the_policy_holds_back_keeps_its_priority(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, lines, changed = fake
    queue.policy = HoldsBack()
    lines += [pending(1, "a"), pending(2, "bb", user="eve"), pending(3, "ccc")]
    queue.tick()
    assert changed == [3]
    calls = Mock(return_value=[])
    monkeypatch.setattr(slurm_queue, "read_nodes", calls)
    assert [job["id"] for job in queue.view("me", 0)["jobs"]] == [3, 1, 2]
    assert calls.call_count == 1


def test_only_jobs_that_end_by_themselves_are_learned(fake: Any) -> None:
    queue, lines, _ = fake
    states = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL")
    lines += [f"{job}|N/A|ada|{state}|1|N/A|1|1|2|9|9|None||team|a" for job, state in enumerate(states, 1)]
    queue.tick()
    assert [int(request.id) for request, _, _ in queue.store.history()] == [-2, -1]


def test_oldest_jobs_are_ordered(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_queue, "MAX_ORDERED", 2)
    monkeypatch.setattr(slurm_queue, "new_priorities", lambda current: dict.fromkeys(range(len(current)), 1))
    queue, lines, changed = fake
    lines += [pending(1, "a", 30), pending(2, "b", 10), pending(3, "c", 20)]
    queue.tick()
    assert changed == [2, 3]


@pytest.mark.parametrize("error", [DiskFull("full"), UsageError("other")])
def test_loop_survives_errors(fake: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    queue, stopped, ticks = fake[0], threading.Event(), list[None]()
    monkeypatch.setattr(slurm_queue, "EVERY_SECONDS", 0.0)

    def fail() -> None:
        ticks.append(None)
        if len(ticks) == 2:
            stopped.set()
        raise error

    monkeypatch.setattr(queue, "tick", fail)
    queue.run(stopped)
    assert len(ticks) == 2


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("N/A", 0),
        ("(null)", 0),
        ("gres:gpu", 1),
        ("gres:gpu:2", 2),
        ("gpu:a100:4", 4),
        ("gpu:a100:4(S:0-1),gpu:v100:2", 6),
        ("gres/gpu:3", 3),
        ("shard:8", 0),
        ("gpu:3090:4", 4),
        ("gres/gpu:2080ti:8(IDX:0-3,6-9),gpu:1", 9),
        ("gres:gpu:1g.5gb:2", 2),
        ("gpu:a100", 1),
        ("gres:gpu:3g.20gb", 1),
    ],
)
def test_gpus_of_resources(gres: str, count: int) -> None:
    assert gpus_of(gres) == count


def test_line_of_squeue() -> None:
    line = "7|N/A|ada|RUNNING|16|gres:gpu:a100:2|2|100|150|NONE|9|None|n[1-2]|team|a|b"
    job = read_job(line)
    assert isinstance(job, SlurmJob)
    assert (job.gpus, job.cpus, job.name, job.started, job.ended) == (4, 16, "a|b", 150.0, None)
    assert read_job("?|N/A|ada|PENDING|1|N/A|1|1|N/A|N/A|1|None||x|y") is None
    assert read_job("") is None


def test_new_priorities_fall_and_change_few() -> None:
    stream = random.Random(0)
    for _ in range(300):
        count, most = stream.randrange(0, 12), stream.choice([20, 1000, 4_000_000_000])
        current = [stream.randrange(1, most + 1) for _ in range(count)]
        changed = new_priorities(current, most)
        found = [changed.get(index, one) for index, one in enumerate(current)]
        assert all(1 <= one <= most for one in found)
        assert all(first > second for first, second in pairwise(found))
    assert new_priorities([90, 50, 10]) == {}
    assert new_priorities([90, 95, 50, 10], 100).keys() <= {0, 1}
    assert len(new_priorities([90, 95, 50, 10], 100)) == 1
