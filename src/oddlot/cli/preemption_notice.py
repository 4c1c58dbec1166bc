"""Poll the EC2 metadata service for a spot interruption notice, and send SIGTERM to a run or a worker.

Version 2 of the service replies 404 until two minutes before the instance is reclaimed. On SIGTERM a run saves and
stops, and a worker returns the finished part of its task.
"""

import json
import os
import signal
import time
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from oddlot.core.support.errors import InvalidValue, UsageError

METADATA = "http://169.254.169.254"
EVERY_SECONDS = 5.0
"""Time between two requests, as the EC2 documentation recommends."""
TIMEOUT_SECONDS = 2.0
TOKEN_SECONDS = 21_600
LONGEST_ANSWER = 10_000

_open = build_opener(ProxyHandler({})).open
"""Opens URLs without a proxy, because the service is local to the machine."""


class Metadata:
    """The metadata service at a URL. Requests raise OSError if there is no reply."""

    def __init__(self, url: str = METADATA) -> None:
        self.url = url.rstrip("/")
        self.token = ""

    def notice(self) -> str:
        """Return the action and the time of the notice, as text; empty if there is no notice."""
        for _ in range(2):
            if not self.token:  # a server without tokens is another service, and its 404 means nothing
                ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
                self.token = self._ask("api/token", ttl, "PUT").decode("latin-1").strip()
            try:
                message = self._ask(
                    "meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": self.token}
                )
                return _read(message)
            except HTTPError as error:
                if error.code == 404:
                    return ""
                if error.code != 401:
                    raise
            self.token = ""
        raise OSError("its tokens are not accepted")

    def _ask(self, path: str, headers: dict[str, str], method: str = "GET") -> bytes:
        request = Request(f"{self.url}/latest/{path}", headers=headers, method=method)
        try:
            with _open(request, timeout=TIMEOUT_SECONDS) as answer:
                read: bytes = answer.read(LONGEST_ANSWER)
                return read
        except HTTPError as error:
            error.close()  # it holds an open socket
            raise
        except HTTPException as error:  # the reply is not HTTP
            raise OSError(f"it answers with {error!r}") from None


def watch(pid: int, url: str = METADATA, every: float = EVERY_SECONDS) -> str:
    """Poll until there is a notice, then send SIGTERM to the process.

    Return the notice; empty if the process ended first. Raise UsageError if there is no such process, or if the service
    does not reply to the first request. Later failures are retried.
    """
    if not url.startswith(("http://", "https://")):
        raise InvalidValue("url", url, "an address that begins with http://")
    service, answered = Metadata(url), False
    if not _lives(pid):
        raise UsageError(f"there is no process {pid}", "no_such_process", "pid", pid=pid)
    while _lives(pid):
        try:
            message, answered = service.notice(), True
        except OSError as error:
            if not answered:
                raise _no_service(url, error) from None
            message = ""
        if message:
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:  # it has just ended
                return ""
            return message
        time.sleep(every)
    return ""


def _no_service(url: str, error: OSError) -> UsageError:
    """Return the error for a URL without a metadata service."""
    reason = str(getattr(error, "reason", error))
    return UsageError(
        f"No metadata service at {url} ({reason}). It exists on EC2 instances; name another one with --url",
        "no_metadata_service",
        "url",
        url=url,
        reason=reason,
    )


def _read(answer: bytes) -> str:
    """Return a notice as text: `terminate at 2026-01-01T00:02:00Z`. Any other response counts as a notice too."""
    try:
        message = json.loads(answer)
        return f"{message['action']} at {message['time']}"
    except (ValueError, KeyError, TypeError):
        return "an unreadable notice"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        raise UsageError(
            f"process {pid} belongs to another user", "foreign_process", "pid", pid=pid
        ) from None
    return True
