"""Attempts as real processes: their ends, their limits, and signals."""

import json
import os
import pwd
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from oddlot.core.support.errors import UsageError
from oddlot.queue.server import processes
from oddlot.queue.server.attempt import start_ticks
from oddlot.queue.server.job_store import State
from oddlot.queue.server.queue_folder import user_name
from oddlot.queue.server.resources import count_cpus
from tests.queue.server.local_queue import LocalQueue, local_queue
from tests.queue.server.queue_servers import wait_for
from tests.transcripts import raises

NOBODY = "nobody"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs of other users")


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[LocalQueue]:
    with local_queue(tmp_path / "queue", gpus=4) as queue:
        yield queue


def test_command_gets_its_folder_environment_gpus_and_limits(queue: LocalQueue, tmp_path: Path) -> None:
    script = 'pwd; echo "$WORD $CUDA_VISIBLE_DEVICES $ODDLOT_QUEUE_JOB"; ulimit -n; cat'
    first = queue.shell("sleep 600", gpus=1)
    job = queue.shell(script, cwd=str(tmp_path), env={"WORD": "a b"}, gpus=2, limits={"open_files": 77})
    assert queue.until(job).state is State.FINISHED
    assert queue.output(job).splitlines() == [str(tmp_path), f"a b 1,2 {job}", "77"]
    assert queue.job(first).state is State.RUNNING


@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [
        (["sh", "-c", "exit 3"], 3, ""),
        (["sh", "-c", "kill -9 $$"], 137, "ended by signal 9"),
        (["no-such-command"], 127, "no-such-command: command not found"),
        (
            ["python x.py --a 1"],
            127,
            "the program 'python x.py --a 1' was not found. Use sh -c 'python x.py --a 1' for a line of a shell",
        ),
        (["/etc/passwd"], 126, "/etc/passwd cannot be started: Permission denied"),
    ],
)
def test_failed_command_has_its_exit_code_and_a_reason(
    queue: LocalQueue, command: list[str], code: int, reason: str
) -> None:
    job = queue.until(queue.submit(*command))
    assert (job.state, job.exit, job.reason) == (State.FAILED, code, reason)


def test_only_jobs_that_end_by_themselves_are_learned(
    queue: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = Mock()
    monkeypatch.setattr(queue.service.predictor, "observe", observed)
    jobs = [queue.submit("sh", "-c", end) for end in ("true", "exit 3", "kill -9 $$", "kill -TERM $$")]
    jobs.append(queue.submit("no-such-command"))
    for job in jobs:
        queue.until(job)
    cancelled = queue.shell("trap 'exit 0' TERM; echo runs; while :; do sleep 0.1; done")
    queue.says(cancelled, "runs")
    queue.service.cancel(cancelled)
    queue.until(cancelled)
    assert {int(request.id) for request, _, _ in queue.store.history()} == set(jobs[:2])
    assert observed.call_count == 2


def test_missing_working_folder_fails_the_job(queue: LocalQueue, tmp_path: Path) -> None:
    job = queue.until(queue.submit("true", cwd=str(tmp_path / "missing")))
    assert (job.state, job.exit) == (State.FAILED, 126)
    assert str(tmp_path / "missing") in job.reason


def test_working_folder_that_does_not_answer_is_rejected(
    queue: LocalQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system of a network that is down blocks its processes."""
    blocking = tmp_path / "test"
    blocking.write_text("#!/bin/sh\nexec sleep 600\n")
    blocking.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(processes, "FOLDER_SECONDS", 0.1)
    with raises(UsageError, "unusable_folder", path="/", user=user_name()):
        queue.processes.check_folder(user_name(), "/")


def test_command_ends_when_its_folder_is_deleted(queue: LocalQueue) -> None:
    """A new server would not find the command, and start the job again beside it."""
    job = queue.shell("trap '' TERM; echo runs; while :; do sleep 0.1; done")
    queue.says(job, "runs")
    claim, child = queue.claim(job), queue.processes.children[queue.path(job)]
    shutil.rmtree(queue.path(job))
    queue.restart()
    wait_for(lambda: start_ticks(claim["command"]) is None)
    assert child.wait(timeout=20) == 0


@pytest.mark.parametrize("restarted", ["never", "before", "after"])
def test_job_with_a_deleted_folder_is_lost_and_not_started_again(queue: LocalQueue, restarted: str) -> None:
    """The server is restarted never, before the folder is deleted, or after."""
    job = queue.shell("trap 'sleep 3' TERM; echo runs; while :; do sleep 0.1; done")
    queue.says(job, "runs")
    claim = queue.claim(job)
    if restarted == "before":
        queue.restart()
        queue.service.tick()
    shutil.rmtree(queue.path(job))
    if restarted == "after":
        queue.restart()
    assert queue.until(job).state is State.FAILED
    assert start_ticks(claim["command"]) is None
    assert [one.state for one in queue.store.attempts(job)] == [State.LOST]


def test_process_that_the_command_leaves_is_ended_before_its_gpu_is_free(queue: LocalQueue) -> None:
    job = queue.shell("setsid sh -c 'trap \"\" TERM; echo $$ > $HERE/left; sleep 600' & sleep 0.3", gpus=4)
    other = queue.shell("echo $CUDA_VISIBLE_DEVICES", gpus=4)
    queue.until(job)
    left = int((queue.folder.path / "left").read_text())
    assert start_ticks(left) is None
    assert queue.until(other).state is State.FINISHED
    assert queue.output(other) == "0,1,2,3\n"


def test_sigterm_is_followed_by_sigkill_of_the_group(queue: LocalQueue) -> None:
    job = queue.shell("trap 'echo asked' TERM; echo $$; while :; do sleep 1; done")
    queue.says(job, "\n")
    queue.service.cancel(job)
    found = queue.until(job)
    assert (found.state, found.exit) == (State.CANCELLED, 137)
    assert queue.output(job).count("asked") == 1
    assert start_ticks(queue.claim(job)["command"]) is None


def test_pending_job_is_cancelled_at_once(queue: LocalQueue) -> None:
    queue.shell("sleep 600", cpus=2)
    job = queue.shell("sleep 600")
    assert queue.service.cancel(job).state is State.CANCELLED
    assert queue.store.attempts(job) == []


@pytest.mark.parametrize("deleted", [False, True])
def test_killed_watcher_leaves_the_command_running_and_the_job_is_lost_then(
    queue: LocalQueue, *, deleted: bool
) -> None:
    """`deleted`: the folder of the attempt is deleted while no server runs."""
    job = queue.shell("echo runs; while [ ! -e $HERE/go ]; do sleep 0.05; done")
    queue.says(job, "runs")
    claim = queue.claim(job)
    os.kill(claim["pid"], signal.SIGKILL)
    wait_for(lambda: start_ticks(claim["pid"]) is None)
    if deleted:
        shutil.rmtree(queue.path(job))
        queue.restart()
    queue.service.tick()
    assert queue.job(job).state is State.RUNNING
    (queue.folder.path / "go").touch()
    found = queue.until(job)
    assert (found.state, found.exit) == (State.FAILED, None)
    assert [attempt.state for attempt in queue.store.attempts(job)] == [State.LOST]


def test_command_that_gives_up_the_lock_still_runs(queue: LocalQueue) -> None:
    script = "for one in /proc/self/fd/*; do flock -u ${one##*/} 2>/dev/null; done; echo free; exec sleep 600"
    job = queue.shell(script)
    queue.says(job, "free")
    queue.restart()
    queue.service.tick()
    assert queue.job(job).state is State.RUNNING


def test_command_without_its_watcher_is_cancelled(queue: LocalQueue) -> None:
    job = queue.shell("trap '' TERM; echo runs; while :; do sleep 0.1; done")
    queue.says(job, "runs")
    claim = queue.claim(job)
    os.kill(claim["pid"], signal.SIGKILL)
    wait_for(lambda: start_ticks(claim["pid"]) is None)
    queue.service.cancel(job)
    assert queue.until(job).state is State.CANCELLED
    assert start_ticks(claim["command"]) is None


def test_lost_job_with_requeue_starts_again(queue: LocalQueue) -> None:
    job = queue.shell("echo runs; [ $ODDLOT_QUEUE_ATTEMPT = 2 ] || exec sleep 600", requeue=True)
    queue.says(job, "runs")
    claim = queue.claim(job)
    for pid in (claim["pid"], claim["command"]):
        os.kill(pid, signal.SIGKILL)
    assert queue.until(job).state is State.FINISHED
    assert [one.state for one in queue.store.attempts(job)] == [State.LOST, State.FINISHED]


def test_watcher_that_dies_before_the_claim_is_started_again(
    queue: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = queue.processes.__class__.start
    folders = list[Path]()

    def without_order(*given: object) -> None:
        spawn(*given)  # type: ignore[arg-type]
        if not folders:  # stop the process before it has read its order
            folders.append(queue.path(1))
            queue.processes.children[folders[0]].kill()

    monkeypatch.setattr(type(queue.processes), "start", without_order)
    job = queue.shell("echo $ODDLOT_QUEUE_ATTEMPT")
    assert queue.until(job).state is State.FINISHED
    assert [one.state for one in queue.store.attempts(job)] == [State.VOID, State.FINISHED]
    assert queue.output(job, 2) == "2\n"


def test_result_waits_for_a_free_disk(queue: LocalQueue) -> None:
    """A folder in the place of the temporary file stops the write as a full disk does."""
    job = queue.shell("while [ ! -e $HERE/go ]; do sleep 0.05; done; exit 4")
    queue.claim(job)
    blocked = queue.path(job) / ".result.json.new"
    blocked.mkdir()
    (queue.folder.path / "go").touch()
    command = queue.claim(job)["command"]
    wait_for(lambda: start_ticks(command) is None)
    queue.service.tick()
    assert queue.job(job).state is State.RUNNING
    blocked.rmdir()
    assert queue.until(job).exit == 4


@pytest.mark.skipif(count_cpus() < 2, reason="this machine has one core")
def test_pinned_jobs_get_cores_of_their_own(tmp_path: Path) -> None:
    with local_queue(tmp_path / "queue", pin=True) as queue:
        script = "grep Cpus_allowed_list /proc/self/status; exec sleep 600"
        jobs = [queue.shell(script) for _ in range(2)]
        cores = set()
        for job in jobs:
            queue.says(job, "Cpus_allowed_list")
            cores.add(int(queue.output(job).split()[1]))
        assert cores == {core for job in jobs for core in queue.service.running[job].cores}
        assert len(cores) == 2


@needs_root
def test_root_runs_a_job_as_the_user_who_submitted_it(queue: LocalQueue, tmp_path: Path) -> None:
    about = pwd.getpwnam(NOBODY)
    job = queue.shell("id -u; id -g; id -G; cat /etc/shadow", user=NOBODY)
    assert queue.until(job).state is State.FAILED
    groups = " ".join(map(str, os.getgrouplist(NOBODY, about.pw_gid)))
    assert queue.output(job).splitlines()[:3] == [str(about.pw_uid), str(about.pw_gid), groups]
    assert json.loads((queue.path(job) / "result.json").read_bytes())["exit"] == 1


def test_server_of_a_user_does_not_run_jobs_of_others(queue: LocalQueue) -> None:
    job = queue.shell("true", user="no-such-user")
    queue.service.tick()
    assert queue.job(job).state is not State.FINISHED
    assert not list(queue.folder.jobs.glob(f"{job}/*/claim.json"))
