"""`oddlot notice` sends SIGTERM on an interruption notice. The metadata service is fake."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from oddlot.cli.preemption_notice import Metadata, watch
from oddlot.core.support.errors import UsageError
from tests.command import Oddlot
from tests.transcripts import mask, raises, transcribe

PORT, PID = r"(?<=127\.0\.0\.1:)\d+", r"(?<=process )\d+"
NOTICE = b'{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'


class Service(BaseHTTPRequestHandler):
    """A request handler that sends the server's `answers` in order, and repeats the last reply."""

    def do_PUT(self) -> None:
        assert self.path == "/latest/api/token"
        assert self.headers["X-aws-ec2-metadata-token-ttl-seconds"] == "21600"
        code = self.server.token_code  # type: ignore[attr-defined]
        self._say(code, f"token{self._noted('PUT')}".encode())

    def do_GET(self) -> None:
        assert self.path == "/latest/meta-data/spot/instance-action"
        tokens = self.server.asked.count("PUT")  # type: ignore[attr-defined]
        if not tokens or self.headers["X-aws-ec2-metadata-token"] != f"token{tokens}":
            self._say(401, b"Unauthorized")
            return
        answers: list[tuple[int, bytes]] = self.server.answers  # type: ignore[attr-defined]
        self._say(*answers[min(self._noted("GET"), len(answers)) - 1])

    def _noted(self, method: str) -> int:
        asked: list[str] = self.server.asked  # type: ignore[attr-defined]
        asked.append(method)
        return asked.count(method)

    def _say(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def service(*answers: tuple[int, bytes], token_code: int = 200) -> Iterator[tuple[str, list[str]]]:
    """Run a metadata service with these replies. Yield its URL and the list of its requests."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.answers, server.asked, server.token_code = answers, [], token_code  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.asked  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


def test_notice_sends_sigterm(sleeper: subprocess.Popen[bytes]) -> None:
    with service((404, b""), (404, b""), (200, NOTICE)) as (url, asked):
        assert watch(sleeper.pid, url, every=0.01) == "terminate at 2026-01-01T00:02:00Z"
    assert asked == ["PUT", "GET", "GET", "GET"], "one token does for hours"
    assert sleeper.wait() == -signal.SIGTERM


@pytest.mark.parametrize("answer", [b"", b"{}", b"[]", b"\xff", b'{"action": 3}'])
def test_unreadable_notice_counts_as_a_notice(answer: bytes) -> None:
    with service((200, answer)) as (url, _):
        assert Metadata(url).notice() == "an unreadable notice"


def test_service_errors_are_retried(sleeper: subprocess.Popen[bytes]) -> None:
    with service((404, b""), (500, b""), (503, b""), (200, NOTICE)) as (url, asked):
        assert watch(sleeper.pid, url, every=0.01)
        assert asked.count("GET") == 4


def test_rejected_token_is_renewed() -> None:
    with service((404, b"")) as (url, asked):
        metadata = Metadata(url)
        assert not metadata.notice()
        metadata.token = "old"
        assert not metadata.notice()
        assert asked == ["PUT", "GET", "PUT", "GET"]


def test_service_without_tokens_raises_no_metadata_service(sleeper: subprocess.Popen[bytes]) -> None:
    """The service of another cloud replies 404 to every request, so a 404 does not mean that there is no notice."""
    mask(port=PORT)
    with service((404, b""), token_code=404) as (url, asked), raises(UsageError, "no_metadata_service"):
        watch(sleeper.pid, url)
    assert asked == ["PUT"]


def test_url_option_sets_the_address_of_the_service(sleeper: subprocess.Popen[bytes], oddlot: Oddlot) -> None:
    with service((200, NOTICE)) as (url, _):
        answer = oddlot("notice", str(sleeper.pid), "--url", url, "--every", "0.5")
    assert answer.code == 0
    transcribe(answer.out, port=PORT, pid=PID)
    assert sleeper.wait() == -signal.SIGTERM


def test_watching_ends_with_the_process(sleeper: subprocess.Popen[bytes]) -> None:
    with service((404, b"")) as (url, asked):
        watching = Thread(target=lambda: message.append(watch(sleeper.pid, url, every=0.01)))
        message: list[str] = []
        watching.start()
        while asked.count("GET") < 2:
            pass
        sleeper.kill()
        sleeper.wait()
        watching.join()
    assert message == [""]


def test_missing_service_or_process_raises(sleeper: subprocess.Popen[bytes]) -> None:
    mask(port=PORT, pid=PID)
    with service((404, b"")) as (url, _):
        pass
    with raises(UsageError, "no_metadata_service", url=url):
        watch(sleeper.pid, url)
    with service((500, b"")) as (url, _), raises(UsageError, "no_metadata_service", url=url):
        watch(sleeper.pid, url)
    sleeper.kill()
    sleeper.wait()
    with raises(UsageError, "no_such_process", pid=sleeper.pid):
        watch(sleeper.pid, url)


def test_process_may_end_during_a_request(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def notice(_: Metadata) -> str:
        sleeper.kill()
        sleeper.wait()
        return "terminate"

    monkeypatch.setattr(Metadata, "notice", notice)
    assert not watch(sleeper.pid, "http://127.0.0.1:1")


def test_url_without_a_scheme_is_rejected(sleeper: subprocess.Popen[bytes]) -> None:
    with raises(UsageError, "invalid_value", name="url", given="127.0.0.1"):
        watch(sleeper.pid, "127.0.0.1")
