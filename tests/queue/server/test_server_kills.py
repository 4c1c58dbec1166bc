"""`kill -9` of the server at each point of its work: no job is lost, and none is started twice."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oddlot.queue.server.client import NoServer
from tests.queue.server.queue_servers import RECORD, Server, wait_for

CALLS = {"start": 2, "spawn": 2, "end": 1, "add": 2, "cancel": 1, "stop": 1}
"""Functions of `killed_server.py`, and the number of the call."""
ALWAYS = ("start", "spawn", "end")
POINTS = [
    pytest.param(f"{when}:{name}:{number}", marks=() if name in ALWAYS else pytest.mark.long)
    for name, number in CALLS.items()
    for when in ("before", "after")
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Return a server that has not been started."""
    server = Server(tmp_path / "queue", "--cpus", "2", "--grace", "1")
    yield server
    server.end_everything()


def post(server: Server, path: str, content: Any) -> Any:
    """Send a request until a server has replied. Start a killed server again."""
    while True:
        server.revive()
        with suppress(NoServer):
            return replace(server.client, tries=1).post(path, content)


def states(server: Server, ids: list[int]) -> list[str]:
    """Return the states of jobs. Start a killed server again."""
    while True:
        server.revive()
        with suppress(NoServer):
            client = replace(server.client, tries=1)
            return [client.get(f"/api/jobs/{job}")["state"] for job in ids]


@pytest.mark.parametrize("point", POINTS)
def test_kill_at_each_point_loses_no_job_and_starts_none_twice(server: Server, point: str) -> None:
    server.start(killed_at=point)
    submissions = [server.submission("sh", "-c", f"{RECORD}exec sleep 600")]
    submissions += [server.submission("sh", "-c", f"{RECORD}sleep 0.2") for _ in range(3)]
    ids = [post(server, "/api/jobs", each)["id"] for each in submissions]
    assert ids == [1, 2, 3, 4]
    wait_for(lambda: states(server, [1]) == ["running"] and (1, 1) in attempts(server))
    post(server, "/api/jobs/1/cancel", {})
    ended = ["cancelled", *["finished"] * 3]
    wait_for(lambda: states(server, ids) == ended)
    assert Counter(job for job, _, _ in server.started()) == dict.fromkeys(ids, 1)
    assert server.deaths == 1


@pytest.mark.parametrize("point", ["before:preempt:1", "after:preempt:1"])
def test_kill_during_a_preemption_loses_no_job(tmp_path: Path, point: str) -> None:
    """The long job stops once, and continues after the short one."""
    server = Server(tmp_path / "queue", "--cpus", "1", "--grace", "1", "--policy", "srtf")
    script = "trap 'exit 143' TERM; [ $ODDLOT_QUEUE_ATTEMPT = 2 ] || sleep 600 & wait"
    options: list[dict[str, Any]] = [{"estimate": 600, "requeue": True}, {"estimate": 1}]
    try:
        server.start(killed_at=point)
        long = post(server, "/api/jobs", server.submission("sh", "-c", RECORD + script, **options[0]))["id"]
        wait_for(lambda: (long, 1) in attempts(server))
        short = post(server, "/api/jobs", server.submission("sh", "-c", f"{RECORD}true", **options[1]))["id"]
        wait_for(lambda: states(server, [long, short]) == ["finished", "finished"])
        assert attempts(server) == [(long, 1), (short, 1), (long, 2)]
        first, second = (server.job(job)["attempts"][0] for job in (long, short))
        assert first["state"] == "preempted"
        assert second["started"] >= first["ended"]
        assert server.deaths == 1
    finally:
        server.end_everything()


def attempts(server: Server) -> list[tuple[int, int]]:
    return [(job, attempt) for job, attempt, _ in server.started()]
