"""A new service takes over jobs and processes of an earlier one, and damaged databases are not touched."""

import errno
import math
import os
import signal
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oddlot.core.support.errors import UsageError
from oddlot.queue.core.policies.fifo import Fifo
from oddlot.queue.core.policy import PolicyFailed
from oddlot.queue.server import failed_starts, processes, queue_service
from oddlot.queue.server.attempt import start_ticks, write_json
from oddlot.queue.server.database import DamagedDatabase, DiskFull, open_database
from oddlot.queue.server.failed_starts import FailedStarts
from oddlot.queue.server.job_store import AttemptRow, State
from oddlot.queue.server.job_views import brief
from oddlot.queue.server.training_command import resuming_command
from tests.queue.server.local_queue import LocalQueue, local_queue
from tests.queue.server.queue_servers import wait_for
from tests.transcripts import raises


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[LocalQueue]:
    with local_queue(tmp_path / "queue", gpus=2) as queue:
        yield queue


def test_running_job_is_found_again_with_its_gpus(queue: LocalQueue) -> None:
    first = queue.shell("while [ ! -e $HERE/go ]; do sleep 0.05; done; echo $$", gpus=1)
    queue.claim(first)
    queue.machine = "renamed"
    queue.restart()
    second = queue.shell("echo $CUDA_VISIBLE_DEVICES", gpus=1)
    third = queue.shell("echo $CUDA_VISIBLE_DEVICES", gpus=2)
    queue.until(second)
    assert queue.output(second) == "1\n"
    assert queue.job(third).state is State.PENDING
    (queue.folder.path / "go").touch()
    assert queue.until(first).state is State.FINISHED
    assert queue.output(first).split() == [str(queue.claim(first)["command"])]
    assert queue.until(third).state is State.FINISHED


def test_job_that_ended_without_a_server_is_finished_with_its_own_time(queue: LocalQueue) -> None:
    job = queue.shell("sleep 0.2")
    result = queue.path(job) / "result.json"
    wait_for(result.exists)
    ended = result.stat().st_mtime
    queue.restart()
    found = queue.until(job)
    assert found.state is State.FINISHED
    assert found.ended == pytest.approx(ended, abs=0.5)
    (_, duration, _) = queue.store.history()[0]
    assert 0.2 <= duration < 5


def test_jobs_that_the_policy_cannot_order_are_rejected_or_held_back(
    queue: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = queue.shell("while [ ! -e $HERE/go ]; do sleep 0.05; done", cpus=2)
    waiting = queue.shell("true", name="bad")
    by_name = {"bad": math.nan}
    monkeypatch.setattr(Fifo, "priority", lambda _, job, now, usage: by_name.get(job.request.name, 0.0))
    with raises(PolicyFailed, "policy_failed"):
        queue.shell("true", name="bad")
    queue.restart()
    assert [job.id for job in queue.store.open_jobs()] == [running, waiting]
    (queue.folder.path / "go").touch()
    queue.until(running)
    queue.until(queue.shell("true"))
    assert queue.job(waiting).state is State.PENDING
    del by_name["bad"]
    queue.restart()
    assert queue.until(waiting).state is State.FINISHED


def test_claim_of_an_earlier_boot_is_lost(queue: LocalQueue) -> None:
    """After a reboot, another process may have the id of the command."""
    job = queue.shell("exec sleep 600")
    claim = queue.claim(job)
    os.kill(claim["pid"], signal.SIGKILL)
    os.kill(claim["command"], signal.SIGKILL)
    own = {"command": os.getpid(), "command_ticks": start_ticks(os.getpid())}
    path = queue.path(job) / "claim.json"
    for boot, state in ((claim["boot"], State.RUNNING), ("another", State.FAILED)):
        write_json(path, claim | own | {"boot": boot})
        queue.restart()
        wait_for(lambda: start_ticks(claim["command"]) is None)
        queue.service.tick()
        assert queue.job(job).state is state


def test_cancellation_that_was_committed_is_carried_out(queue: LocalQueue) -> None:
    job = queue.shell("sleep 600")
    pending = queue.shell("sleep 600", cpus=2)
    queue.claim(job)
    queue.store.cancel(queue.job(job), 0.0)
    queue.restart()
    assert queue.until(job).state is State.CANCELLED
    assert queue.until(pending, State.RUNNING).state is State.RUNNING


def test_job_that_ends_as_soon_as_it_is_preempted_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the first job preempts the second one, in the same look at the attempts."""
    with local_queue(tmp_path / "queue", policy="srtf", cpus=2) as queue:
        stop = queue.processes.stop

        def stop_and_wait(attempt: AttemptRow) -> None:
            stop(attempt)
            wait_for((queue.path(attempt.job, attempt.attempt) / "result.json").exists)

        monkeypatch.setattr(queue.processes, "stop", stop_and_wait)
        queue.shell("while [ ! -e $HERE/go ]; do sleep 0.05; done", estimate=0.01)
        long = queue.shell("echo runs; [ -e $HERE/go ] || exec sleep 600", estimate=600.0, requeue=True)
        queue.says(long, "runs")
        queue.shell("true", estimate=1.0, cpus=2)
        (queue.folder.path / "go").touch()
        assert queue.until(long).state is State.FINISHED
        assert [attempt.state for attempt in queue.store.attempts(long)] == [State.PREEMPTED, State.FINISHED]


def test_preempted_job_continues_and_keeps_its_place_over_a_restart(tmp_path: Path) -> None:
    """Under `srtf`, a short job preempts a long one, which starts again when the short one has ended."""
    with local_queue(tmp_path / "queue", policy="srtf", cpus=1) as queue:
        script = "trap 'echo saved; exit 143' TERM; echo runs; [ -e $HERE/again ] || sleep 600 & wait"
        long = queue.shell(script, estimate=600.0, requeue=True)
        queue.says(long, "runs")
        short = queue.shell("sleep 0.3", estimate=1.0)
        queue.restart()
        queue.until(short)
        (queue.folder.path / "again").touch()
        assert queue.until(long).state is State.FINISHED
        assert [one.state for one in queue.store.attempts(long)] == [State.PREEMPTED, State.FINISHED]
        assert queue.output(long) == "runs\nsaved\n"
        first, last = (one.ended - one.created for one in queue.store.attempts(long) if one.ended)
        durations = {request.id: seconds for request, seconds, _ in queue.store.history()}
        assert durations[str(long)] == pytest.approx(first + last)
        found, ran = queue.job(long), queue.service.ran([long])[long]
        assert found.ended
        shown = brief(found, found.ended + 9, None, None, ran, own=True)
        waited = found.ended - found.submitted - first - last
        assert (shown["ran_seconds"], shown["waiting_seconds"]) == pytest.approx((first + last, waited))
        assert waited > 0.2


def test_lost_training_keeps_its_time_until_its_last_output(queue: LocalQueue) -> None:
    script = queue.folder.path / "oddlot"
    script.write_text("#!/bin/sh\nsleep 0.5; echo saved; [ $ODDLOT_QUEUE_ATTEMPT = 2 ] || exec sleep 600\n")
    script.chmod(0o755)
    job = queue.submit(str(script), "train")
    queue.says(job, "saved")
    claim = queue.claim(job)
    for pid in (claim["pid"], claim["command"]):
        os.kill(pid, signal.SIGKILL)
    saved = queue.processes.output(queue.store.attempt(job, 1)).stat().st_mtime
    assert queue.until(job).state is State.FINISHED
    first, last = queue.store.attempts(job)
    assert (first.state, last.ended is not None) == (State.LOST, True)
    (_, seconds, _) = queue.store.history()[0]
    assert last.ended
    assert seconds == pytest.approx(saved - first.created + last.ended - last.created)


def test_job_that_cannot_continue_is_not_preempted(tmp_path: Path) -> None:
    with local_queue(tmp_path / "queue", policy="srtf", cpus=1) as queue:
        long = queue.shell("while [ ! -e $HERE/go ]; do sleep 0.05; done", estimate=600.0)
        queue.claim(long)
        short = queue.shell("true", estimate=1.0)
        queue.service.tick()
        assert queue.job(short).state is State.PENDING
        (queue.folder.path / "go").touch()
        assert queue.until(short).state is State.FINISHED
        assert len(queue.store.attempts(long)) == 1


def test_training_is_preempted_and_resumes_its_run(tmp_path: Path) -> None:
    with local_queue(tmp_path / "queue", policy="srtf", cpus=1, grace=30) as queue:
        asked = [sys.executable, "-m", "oddlot", "train", "digits", "--epochs", "400", "--workers", "1"]
        command = resuming_command([*asked, "--checkpoint-every", "1 versions"], "runs/one")
        assert command[-4:] == ["--resume", "auto", "--out", "runs/one"]
        env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "ODDLOT_DATA") if name in os.environ}
        env |= {"PYTHONPATH": str(Path(__file__).parents[3] / "src")}
        long = queue.submit(*command, cwd=str(tmp_path), env=env, estimate=600.0)
        assert queue.job(long).restarts
        queue.says(long, "epoch")
        short = queue.shell("true", estimate=1.0)
        queue.until(short)
        queue.says(long, "epoch", attempt=2)
        assert [one.state for one in queue.store.attempts(long)] == [State.PREEMPTED, State.RUNNING]
        assert queue.store.attempts(long)[0].exit == 143
        assert queue.job(long).served > 0


def test_job_whose_start_fails_again_and_again_fails(
    queue: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_starts, "RETRY_SECONDS", 0.01)
    job = queue.shell("true", user="no-such-user")
    found = queue.until(job)
    assert found.state is State.FAILED
    assert len(queue.store.attempts(job)) == failed_starts.MAX_FAILED_STARTS


def test_shortage_delays_a_start_and_never_fails_the_job(
    queue: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_starts, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(failed_starts, "MAX_PAUSE", 0.01)
    spawn, tries = processes._spawn, list[Path]()

    def short(path: Path) -> object:
        tries.append(path)
        if len(tries) <= 3 * failed_starts.MAX_FAILED_STARTS:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return spawn(path)

    monkeypatch.setattr(processes, "_spawn", short)
    job = queue.shell("true")
    assert queue.until(job).state is State.FINISHED
    assert [one.state for one in queue.store.attempts(job)] == [State.VOID] * 15 + [State.FINISHED]


def test_pauses_between_failed_starts_grow_to_a_minute() -> None:
    starts = FailedStarts()
    assert [starts.add(1)[1] for _ in range(2000)][:7] == [0, 5, 10, 20, 40, 60, 60]


def test_full_disk_delays_a_start(queue: LocalQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_service, "RETRY_SECONDS", 0.01)
    first = queue.shell("while [ ! -e $HERE/go ]; do sleep 0.05; done", cpus=2)
    job = queue.shell("true")
    pages = queue.store.connection.execute("PRAGMA page_count").fetchone()[0]
    queue.store.connection.execute(f"PRAGMA max_page_count = {pages}")
    with raises(DiskFull, "full_disk"):
        for _ in range(100):
            queue.submit("true", "x" * 50_000, cpus=2)
    (queue.folder.path / "go").touch()
    queue.until(first)
    queue.store.connection.execute("PRAGMA max_page_count = 100000")
    assert queue.until(job).state is State.FINISHED
    assert len([*(queue.folder.jobs / str(job)).iterdir()]) == 1


# --- damaged databases ---------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["text", "header", "pages"])
def test_damaged_database_is_reported_and_not_changed(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "queue.sqlite"
    connection = open_database(path)
    connection.executemany(
        "INSERT INTO settings VALUES (?, ?)", [(f"{number}", "x" * 500) for number in range(200)]
    )
    connection.close()
    content = bytearray(path.read_bytes())
    if damage == "text":
        content = bytearray(b"this is not a database\n" * 100)
    elif damage == "header":
        content[:20] = bytes(20)
    else:
        content[8192:40_000] = os.urandom(40_000 - 8192)
    path.write_bytes(content)
    with raises(DamagedDatabase, "damaged_database", path=str(path)):
        open_database(path)
    assert path.read_bytes() == content


def test_database_of_another_version_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with raises(UsageError, "other_database", version=99):
        open_database(path)


def test_empty_file_is_a_new_database(tmp_path: Path) -> None:
    """A server that is killed at its first start leaves one."""
    path = tmp_path / "queue.sqlite"
    path.touch()
    connection = open_database(path)
    assert connection.execute("SELECT count(*) FROM jobs").fetchone()[0] == 0
    connection.close()
