"""The server of a queue as a process: its API, bad input, and two servers on a folder."""

import http.client
import json
import resource
import shutil
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest

from oddlot.core.support.errors import JobError, UsageError
from oddlot.queue.server import client as queue_client
from oddlot.queue.server.attempt import start_ticks
from oddlot.queue.server.client import NoServer, QueueClient, follow_output
from oddlot.queue.server.database import DiskFull
from oddlot.queue.server.job_store import CANCEL
from oddlot.queue.server.queue_folder import QueueFolder
from tests.queue.server.local_queue import local_queue
from tests.queue.server.queue_servers import Server, attempt_folder, queue_server, wait_for
from tests.transcripts import raises


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with queue_server(tmp_path_factory.mktemp("server") / "queue", ["--cpus", "2", "--grace", "1"]) as server:
        yield server


def request(
    server: Server, method: str, path: str, content: bytes = b"", token: str | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Send a request with any content and token."""
    own = server.client
    connection = http.client.HTTPConnection(urlsplit(own.url).netloc, timeout=20)
    try:
        headers = {"Authorization": f"Bearer {own.token if token is None else token}"}
        connection.request(method, path, content, headers)
        reply = connection.getresponse()
        return reply.status, dict(reply.headers), reply.read()
    finally:
        connection.close()


# --- the way of a job ----------------------------------------------------------------------------


def test_output_is_followed_until_the_job_ends(server: Server) -> None:
    job = server.submit("sh", "-c", "for i in 1 2 3; do echo line $i; sleep 0.2; done")
    parts = list[bytes]()
    assert follow_output(server.client, job, parts.append, every=0.05) == "finished"
    assert b"".join(parts) == b"line 1\nline 2\nline 3\n"
    assert len(parts) > 1


def test_finished_jobs_teach_the_predictor(server: Server) -> None:
    first = server.submit("sleep", "0.5", name="learnt name")
    assert server.job(first)["predicted_seconds"] == 60.0
    server.wait(first)
    second = server.job(server.submit("sleep", "0.5", name="learnt name"))
    assert 0.4 < second["predicted_seconds"] < 20


def test_open_jobs_have_expected_times_with_ranges(server: Server) -> None:
    running = server.submit("sleep", "600", cpus=2, estimate=600)
    pending = server.submit("sleep", "600", cpus=2, estimate=900)
    server.wait(running, "running")
    found = {job["id"]: job for job in server.client.get("/api/queue")["jobs"]}
    low, middle, high = found[pending]["expected_start"]
    started = found[running]["started"]
    assert [low - started, middle - started, high - started] == pytest.approx([300, 600, 1200], abs=2)
    assert found[pending]["expected_end"][1] - middle == pytest.approx(900, abs=2)
    for job in (running, pending):
        server.client.post(f"/api/jobs/{job}/cancel", {})
        assert server.wait(job)["state"] == "cancelled"


def test_submission_that_is_repeated_is_one_job(server: Server) -> None:
    content = server.submission("true")
    jobs = {server.client.post("/api/jobs", content)["id"] for _ in range(3)}
    assert len(jobs) == 1
    assert len(server.job(jobs.pop())["attempts"]) <= 1


def test_request_is_repeated_if_the_server_is_killed_while_it_replies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_client, "WAIT_SECONDS", 0.0)
    replies = [b"", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{", b"HTTP/1.0 200 OK\r\n\r\n{}"]
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for reply in replies:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(10_000)
                    connection.sendall(reply)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert QueueClient(url, "token").get("/api/queue") == {}
        thread.join()


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "wrong", "x" * 10_000, "\u00e9"])
@pytest.mark.parametrize("path", ["/api/queue", "/api/jobs/1", "/api/jobs/999999", "/api/jobs/1/output"])
def test_wrong_token_gives_nothing_away(server: Server, token: str, path: str) -> None:
    status, _, content = request(server, "GET", path, token=token)
    assert (status, json.loads(content)["code"]) == (401, "not_allowed")
    assert content == request(server, "GET", "/api/queue", token="other")[2]


def test_client_with_a_wrong_token_raises(server: Server) -> None:
    with raises(UsageError, "not_allowed"):
        replace(server.client, token="wrong").get("/api/queue")


def test_token_is_private(server: Server) -> None:
    for path in (server.folder.token, server.folder.database):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert server.client.token.encode() not in server.folder.database.read_bytes()


def test_job_that_is_too_large_is_rejected_with_numbers(server: Server) -> None:
    with raises(UsageError, "job_too_large", gpus=8, cpus=3, machine_gpus=0, machine_cpus=2):
        server.submit("true", gpus=8, cpus=3)


HOSTILE: dict[str, Any] = {
    "command": ["", "true", [], [""], ["a\0b"], [1], ["x" * 200_000], ["\ud800"], {}],
    "cwd": ["relative", "/a\0", 3, None],
    "env": [{"A=B": "1"}, {"": "1"}, {"A": 1}, {"A": "\0"}, [], None],
    "gpus": [-1, 1.5, True, "1", 10**9, None],
    "cpus": [-1, 0],
    "name": ["  ", "a\nb", "\x1b[31m", "x" * 201, 1],
    "limits": [{"memory": -1}, {"memory": 1000}, {"other": 1}, {"memory": 1.5}, {"memory": 2**70}],
    "estimate": [0, -1, "1", True, 1e300],
    "id": ["", "x" * 65, 1],
    "requeue": [1, "yes"],
}


@pytest.mark.parametrize("field", HOSTILE)
def test_invalid_field_is_rejected_by_its_name(server: Server, field: str) -> None:
    for value in HOSTILE[field]:
        content = json.dumps(server.submission("true") | {field: value})
        status, _, reply = request(server, "POST", "/api/jobs", content.encode())
        found = json.loads(reply)
        assert (status, found["code"]) == (400, "invalid_value"), value
        assert found["fields"]["name"] == field
        assert len(reply) < 1000


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b"[]", "invalid_value"),
        (b"{}", "invalid_value"),
        (b'{"shell": 1}', "unknown_name"),
    ],
)
def test_invalid_request_is_rejected(server: Server, content: bytes, code: str) -> None:
    status, _, reply = request(server, "POST", "/api/jobs", content)
    assert (status, json.loads(reply)["code"]) == (400, code)


def test_estimate_that_is_no_number_is_rejected(server: Server) -> None:
    content = json.dumps(server.submission("true")).encode()[:-1] + b', "estimate": NaN}'
    assert request(server, "POST", "/api/jobs", content)[0] == 400


def test_large_request_is_rejected(server: Server) -> None:
    status, _, reply = request(server, "POST", "/api/jobs", b'"' + b"x" * 5_000_000)
    assert (status, json.loads(reply)["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("path", ["/api/jobs/0", f"/api/jobs/{10**25}", "/api/jobs/99999999999/output"])
def test_unknown_job(server: Server, path: str) -> None:
    status, _, reply = request(server, "GET", path)
    assert (status, json.loads(reply)["code"]) == (404, "unknown_job")


def test_page_and_its_files_have_a_strict_policy(server: Server) -> None:
    status, headers, content = request(server, "GET", "/", token="none")
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert b"<title>" in content
    for unknown in ("/api.py", "/%2e%2e/server.py", "/docs", "/openapi.json"):
        assert request(server, "GET", unknown)[0] == 404


def test_second_server_on_a_folder_is_rejected(server: Server) -> None:
    with ExitStack() as closing, raises(UsageError, "queue_in_use", path=str(server.folder.path)):
        server.folder.lock(closing)


def test_client_without_a_server(tmp_path: Path) -> None:
    with raises(NoServer, "no_queue_server"):
        QueueClient.find(QueueFolder(tmp_path))
    with raises(NoServer, "no_queue_server"):
        QueueClient("http://127.0.0.1:1", "token", tries=1).get("/api/queue")


# --- a full disk ---------------------------------------------------------------------------------


def test_full_disk_rejects_submissions_and_running_jobs_continue(tmp_path: Path) -> None:
    with queue_server(tmp_path / "queue", ["--cpus", "2"]) as server:
        job = server.shell(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done")
        server.wait(job, "running")
        assert server.process is not None
        _, most = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1, most))
        with raises(JobError, "full_disk"):
            server.submit("true")
        (tmp_path / "go").touch()
        result = attempt_folder(server.folder, job, 1) / "result.json"
        wait_for(result.exists)
        assert server.job(job)["state"] == "running"
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (most, most))
        assert server.wait(job)["state"] == "finished"
        assert server.wait(server.submit("true"))["state"] == "finished"
        assert server.stop() == 0


def test_full_disk_does_not_keep_a_running_job_from_being_cancelled(tmp_path: Path) -> None:
    with queue_server(tmp_path / "queue", ["--cpus", "1"]) as server:
        running, pending = server.submit("sleep", "600"), server.submit("sleep", "600")
        command = server.claim(running)["command"]
        assert server.process is not None
        _, most = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1, most))
        found = server.client.post(f"/api/jobs/{running}/cancel", {})
        assert found["state"] == "stopping"
        assert "not recorded" in found["reason"]
        with raises(JobError, "full_disk"):
            server.client.post(f"/api/jobs/{pending}/cancel", {})
        wait_for(lambda: start_ticks(command) is None)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (most, most))
        found = server.wait(running)
        assert (found["state"], found["reason"]) == ("cancelled", "")
        assert server.wait(pending, "running")


def test_cancellation_on_a_full_disk_is_recorded_before_the_job_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with local_queue(tmp_path / "queue", grace=60) as queue:
        job = queue.shell("trap '' TERM; echo runs; while :; do sleep 0.1; done")
        queue.says(job, "runs")
        with monkeypatch.context() as full:
            full.setattr(queue.store, "cancel", Mock(side_effect=DiskFull("full")))
            queue.service.cancel(job)
            queue.service.tick()
        assert not queue.store.job(job).cancelled

        def is_recorded() -> bool:
            queue.service.tick()
            return queue.store.job(job).cancelled

        wait_for(is_recorded)
        assert queue.store.attempt(job, 1).stop == CANCEL


def test_an_older_copy_of_the_database_takes_no_results_of_other_jobs(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    with queue_server(folder, ["--cpus", "1"]) as server:
        first = server.shell("true")
        server.wait(first)
        assert server.stop() == 0
    copy = tmp_path / "copy"
    shutil.copy(folder / "queue.sqlite", copy)
    with queue_server(folder, ["--cpus", "1"]) as server:
        lost = server.shell("exit 5")
        assert server.wait(lost)["exit"] == 5
        assert server.stop() == 0
    for name in folder.glob("queue.sqlite*"):
        name.unlink()
    shutil.copy(copy, folder / "queue.sqlite")
    with queue_server(folder, ["--cpus", "1"]) as server:
        new = server.shell("echo new")
        assert new > lost
        assert server.wait(new)["exit"] == 0
        assert server.stop() == 0
    (folder / "queue.sqlite").unlink()
    with queue_server(folder, ["--cpus", "1"]) as server:
        assert server.shell("true") > new


def test_an_attempt_that_is_numbered_again_has_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = QueueFolder(tmp_path)
    assert folder.attempt(1, 1, 1000.0) != folder.attempt(1, 1, 1000.5)
