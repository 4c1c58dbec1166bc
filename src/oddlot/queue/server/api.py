"""The HTTP API of a queue, and its page."""

import json
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from oddlot.core.support.errors import OddlotError, UsageError
from oddlot.demo.site import POLICY, TYPES
from oddlot.queue.core.policy import PolicyFailed
from oddlot.queue.server.admission import JobTooLarge
from oddlot.queue.server.database import DiskFull
from oddlot.queue.server.job_store import Job, JobStore
from oddlot.queue.server.job_views import brief, full
from oddlot.queue.server.processes import LocalProcesses
from oddlot.queue.server.queue_folder import new_token
from oddlot.queue.server.queue_service import QueueService, UnknownAttempt, UnknownJob
from oddlot.queue.server.slurm_queue import SlurmQueue
from oddlot.queue.server.submission import Submission
from oddlot.report.page_style import PALETTE

if TYPE_CHECKING:
    from threading import RLock

MAX_BODY = 4_000_000
"""Largest body of a request, in bytes."""
MAX_OUTPUT = 1_000_000
"""Most bytes of output in a reply."""
MAX_ENDED, MAX_OFFSET = 1_000, 2**62
PAGE = Path(__file__).parent / "page"
HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Denied(Exception):
    """The token is missing or unknown, or does not allow this."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def create_api(service: QueueService, processes: LocalProcesses, owner: str) -> FastAPI:
    """Return the API of a queue. `owner`: the user who may see and cancel all jobs, and create tokens."""
    api = _empty_api()
    _Routes(service, processes, owner).add(api)
    return api


def create_slurm_api(slurm: SlurmQueue) -> FastAPI:
    """Return the API of a queue in front of Slurm. Slurm's own commands submit, show and cancel jobs."""
    api = _empty_api()
    user = Depends(TokenCheck(slurm.store, slurm.lock))

    @api.get("/api/queue")
    def queue(user: Annotated[str, user], ended: int = 50) -> dict[str, Any]:
        return slurm.view(user, max(0, min(ended, MAX_ENDED)))

    @api.api_route("/api/{rest:path}", methods=["GET", "POST"], dependencies=[user])
    def other(rest: str) -> None:
        message = "this queue is Slurm's: use sbatch, scontrol show job and scancel"
        raise UsageError(message, "slurm_queue", path=rest[:100])

    return api


def _empty_api() -> FastAPI:
    """Return an API with the page, and without routes for jobs."""
    api = FastAPI(title="oddlot queue", docs_url=None, redoc_url=None, openapi_url=None)
    _add_errors(api)
    _add_page(api)
    return api


class TokenCheck:
    """Finds the user of a request's token."""

    def __init__(self, store: JobStore, lock: "RLock") -> None:
        self.store, self.lock = store, lock

    def __call__(self, request: Request) -> str:
        """Return the user. Raise Denied without a valid token."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        with self.lock:
            user = self.store.user_of(token.strip()) if kind.lower() == "bearer" else None
        if user is None:
            raise Denied(401)
        return user


async def read_body(request: Request) -> Any:
    """Return the JSON of a request. Raise UsageError if it is too large or invalid."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MAX_BODY:
            message = f"the request is larger than {MAX_BODY} bytes"
            raise UsageError(message, "request_too_large", most=MAX_BODY)
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        message = "the request is not valid JSON"
        raise UsageError(message, "invalid_json") from None


class _Routes:
    """Replies to requests with a valid token."""

    def __init__(self, service: QueueService, processes: LocalProcesses, owner: str) -> None:
        self.service, self.processes, self.owner = service, processes, owner

    def add(self, api: FastAPI) -> None:
        """Add the routes."""
        user = Depends(TokenCheck(self.service.store, self.service.lock))
        body = Depends(read_body)

        @api.get("/api/queue")
        def queue(user: Annotated[str, user], ended: int = 50) -> dict[str, Any]:
            return self._queue(user, ended)

        @api.post("/api/jobs")
        def submit(user: Annotated[str, user], body: Annotated[Any, body]) -> dict[str, Any]:
            asked = Submission.checked(body)
            self.processes.check_folder(user, asked.cwd)
            return self._show(self.service.submit(user, asked), user)

        @api.get("/api/jobs/{job}")
        def show(job: int, user: Annotated[str, user]) -> dict[str, Any]:
            return self._show(self.service.job(job), user)

        @api.post("/api/jobs/{job}/cancel")
        def cancel(job: int, user: Annotated[str, user]) -> dict[str, Any]:
            self._own(self.service.job(job), user)
            return self._show(self.service.cancel(job), user)

        @api.get("/api/jobs/{job}/output")
        def output(
            job: int, user: Annotated[str, user], attempt: int | None = None, start: int = 0
        ) -> Response:
            return self._output(self._own(self.service.job(job), user), attempt, start)

        @api.post("/api/tokens")
        def create_token(user: Annotated[str, user], body: Annotated[Any, body]) -> dict[str, str]:
            return self._create_token(user, body)

    def _is_own(self, job: Job, user: str) -> bool:
        return user in {job.user, self.owner}

    def _own(self, job: Job, user: str) -> Job:
        if not self._is_own(job, user):
            raise Denied(403)
        return job

    def _queue(self, user: str, ended: int) -> dict[str, Any]:
        """Return the open jobs, the last ended ones, and the machines."""
        service, now = self.service, time()
        expected = service.expected()
        with service.lock:
            pool = service.scheduler.pool
            order = {job.request.id: place for place, job in enumerate(service.scheduler.line.jobs())}
            jobs = sorted(service.jobs.values(), key=lambda job: order.get(str(job.id), -1))
            machines = [
                {
                    "id": one.id,
                    "gpus": one.gpus,
                    "cpus": one.cpus,
                    "free_gpus": pool.gpus[one.id],
                    "free_cpus": pool.cpus[one.id],
                }
                for one in pool.machines.values()
            ]
            ended_jobs = service.store.ended_jobs(max(0, min(ended, MAX_ENDED)))
            ran = service.ran(job.id for job in [*jobs, *ended_jobs])

            def row(job: Job) -> dict[str, Any]:
                found, attempt = expected.get(job.id), service.running.get(job.id)
                return brief(job, now, found, attempt, ran.get(job.id, 0.0), own=self._is_own(job, user))

            return {
                "now": now,
                "user": user,
                "policy": service.scheduler.policy.name,
                "machines": machines,
                "jobs": [row(job) for job in jobs],
                "ended": [row(job) for job in ended_jobs],
            }

    def _show(self, job: Job, user: str) -> dict[str, Any]:
        service = self.service
        expected = service.expected().get(job.id)
        with service.lock:
            attempts = service.store.attempts(job.id)
            ran = service.ran([job.id]).get(job.id, 0.0)
            return full(job, time(), expected, attempts, ran, own=self._is_own(job, user))

    def _output(self, job: Job, attempt: int | None, start: int) -> Response:
        """Return the output of an attempt from byte `start` on. A negative `start` counts from the end.

        The headers have the attempt, the end of the content in the output, and the job's state. Raise UnknownAttempt.
        """
        number = job.attempt if attempt is None else attempt
        headers = {"X-State": str(job.state), "X-Attempt": str(number), "X-End": str(max(0, start))}
        content = b""
        if attempt is not None or number:  # a job that was never started has no output
            path = self._output_path(job, number)
            with suppress(FileNotFoundError), path.open("rb") as file:
                start = start if start >= 0 else max(0, file.seek(0, os.SEEK_END) + start)
                file.seek(min(start, MAX_OFFSET))
                content = file.read(MAX_OUTPUT)
                headers["X-End"] = str(start + len(content))
        return Response(content, media_type="application/octet-stream", headers=headers)

    def _output_path(self, job: Job, attempt: int) -> Path:
        try:
            with self.service.lock:
                return self.processes.output(self.service.store.attempt(job.id, attempt))
        except (KeyError, OverflowError):
            raise UnknownAttempt(job.id, attempt) from None

    def _create_token(self, user: str, body: Any) -> dict[str, str]:
        """Create a token of a system user. Older tokens of the user end."""
        if user != self.owner:
            raise Denied(403)
        name = body.get("user") if isinstance(body, dict) else None
        if not isinstance(name, str) or not name or name == self.owner:
            message = "name a user other than the server's"
            raise UsageError(message, "invalid_user")
        self.processes.check_user(name)
        token = new_token()
        with self.service.lock:
            self.service.store.replace_token(token, name, time())
        return {"user": name, "token": token}


STATUS = {UnknownJob: 404, UnknownAttempt: 404, DiskFull: 507, JobTooLarge: 422, PolicyFailed: 500}


def _add_errors(api: FastAPI) -> None:
    """Add replies for errors, and the headers of all replies."""

    @api.exception_handler(OddlotError)
    async def failed(_: Request, error: OddlotError) -> JSONResponse:
        status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 400)
        status = 413 if error.code == "request_too_large" else status
        fields = json.loads(json.dumps(error.fields, default=str))
        return JSONResponse({"error": str(error), "code": error.code, "fields": fields}, status)

    @api.exception_handler(Denied)
    async def denied(_: Request, error: Denied) -> JSONResponse:
        return JSONResponse({"error": "not allowed", "code": "not_allowed", "fields": {}}, error.status)

    @api.middleware("http")
    async def add_headers(request: Request, follow: Callable[[Request], Awaitable[Response]]) -> Response:
        reply = await follow(request)
        reply.headers.update(HEADERS)
        return reply


def _add_page(api: FastAPI) -> None:
    """Add the files of the page. They need no token: they contain no jobs."""
    files = {path.name: path.read_bytes() for path in sorted(PAGE.iterdir()) if path.suffix in TYPES}
    files["palette.css"] = PALETTE.encode()

    @api.get("/{name}")
    async def file(name: str) -> Response:
        content = files.get(name)
        if content is None:
            return Response(status_code=404)
        return Response(content, media_type=TYPES[Path(name).suffix])

    @api.get("/")
    async def index() -> Response:
        return await file("index.html")
