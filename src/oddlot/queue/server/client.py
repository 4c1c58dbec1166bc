"""A client of a queue's API. It uses the standard library only."""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from oddlot.core.support.errors import JobError, UsageError
from oddlot.queue.server.queue_folder import QueueFolder

URL, TOKEN = "ODDLOT_QUEUE_URL", "ODDLOT_QUEUE_TOKEN"
"""Environment variables with the address and the token of a queue of another user."""
TIMEOUT = 30.0
TRIES, WAIT_SECONDS = 40, 0.5
RETRIED = (ConnectionError, TimeoutError, HTTPException, urllib.error.URLError)
"""Errors of a server that does not reply, or is killed while it replies."""


class NoServer(UsageError):
    """The server does not reply."""

    code = "no_queue_server"


@dataclass(frozen=True)
class QueueClient:
    """Sends requests to a server. A request is repeated while the server does not reply, as during its restart.

    Each request may be repeated: a submission has an id, and a cancelled job is not cancelled again.
    """

    url: str
    token: str
    tries: int = TRIES

    @classmethod
    def find(cls, folder: QueueFolder) -> "QueueClient":
        """Return the client of the server in ODDLOT_QUEUE_URL or, by default, of this folder."""
        url, token = os.environ.get(URL), os.environ.get(TOKEN)
        if url:
            if not token:
                message = (
                    f"{URL} is set, and {TOKEN} is not: ask the queue's owner for `oddlot queue token --user`"
                )
                raise UsageError(message, "no_token")
            return cls(url.rstrip("/"), token)
        address = folder.read_address()
        if address is None:
            message = f"there is no queue in {folder.path}: start one with `oddlot queue serve`, or set {URL}"
            raise NoServer(message, path=str(folder.path))
        try:
            return cls(address["url"], token or folder.token.read_text(encoding="utf-8").strip())
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"the token in {folder.token} cannot be read: {reason}. Set {URL} and {TOKEN}"
            raise UsageError(message, "no_token", reason=reason) from error

    def get(self, path: str) -> Any:
        """Return the JSON of a reply."""
        return json.loads(self._repeated(path, None)[0])

    def post(self, path: str, content: Any) -> Any:
        """Send JSON, and return the JSON of the reply."""
        return json.loads(self._repeated(path, json.dumps(content).encode())[0])

    def output(self, job: int, attempt: int | None, start: int) -> tuple[bytes, dict[str, str]]:
        """Return output of an attempt from a byte on, and the headers of the reply."""
        number = "" if attempt is None else f"&attempt={attempt}"
        return self._repeated(f"/api/jobs/{job}/output?start={start}{number}", None)

    def _repeated(self, path: str, content: bytes | None) -> tuple[bytes, dict[str, str]]:
        for left in reversed(range(self.tries)):
            try:
                return self._reply(path, content)
            except urllib.error.HTTPError as error:
                raise error_of(error) from None
            except RETRIED as error:
                if not left:
                    reason = str(getattr(error, "reason", error))
                    message = (
                        f"the queue's server at {self.url} does not reply: {reason}. Run `oddlot queue serve`"
                    )
                    raise NoServer(message, url=self.url, reason=reason) from error
                time.sleep(WAIT_SECONDS)
        raise AssertionError("the last try returns or raises")

    def _reply(self, path: str, content: bytes | None) -> tuple[bytes, dict[str, str]]:
        request = urllib.request.Request(f"{self.url}{path}", data=content)
        request.add_header("Authorization", f"Bearer {self.token}")
        if content is not None:
            request.add_header("Content-Type", "application/json")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=TIMEOUT
        ) as reply:
            return reply.read(), dict(reply.headers)


def error_of(error: urllib.error.HTTPError) -> UsageError | JobError:
    """Return the error in a reply of the server."""
    try:
        found = json.loads(error.read())
        message, code, fields = str(found["error"]), str(found["code"]), dict(found["fields"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return UsageError(
            f"the queue's server replied with status {error.code}", "server_error", status=error.code
        )
    if error.code in {401, 403}:
        message = (
            "the queue's server does not accept the token"
            if error.code == 401
            else "this is another user's job"
        )
    kind = JobError if error.code == 507 else UsageError
    return kind(message, code, **fields)


def follow_output(
    client: QueueClient,
    job: int,
    write: Callable[[bytes], None],
    every: float = 0.5,
    attempt: int | None = None,
) -> str:
    """Write the output of a job until it ends, and return its state. A new attempt starts at its first byte.

    `attempt`: the first attempt. Default: the last one.
    """
    start = 0
    while True:
        content, headers = client.output(job, attempt, start)
        number, state = int(headers["x-attempt"]), headers["x-state"]
        attempt, start = number or None, int(headers["x-end"])
        if content:
            write(content)
            continue
        if state not in {"pending", "running"}:
            return state
        newest = client.get(f"/api/jobs/{job}")["attempt"]
        if attempt is not None and newest > attempt:
            attempt, start = newest, 0
        else:
            time.sleep(every)
