"""The server of a queue: it opens the folder, recovers, and serves the API until a signal."""

import logging
import signal
import socket
import sqlite3
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING

import uvicorn

from oddlot.core.support.errors import UsageError
from oddlot.queue.core.machines import Machine
from oddlot.queue.core.policy_registry import policy_of
from oddlot.queue.core.scheduler import Scheduler
from oddlot.queue.predict.predictor_registry import predictor_of, taught_predictor
from oddlot.queue.server.api import create_api, create_slurm_api
from oddlot.queue.server.database import damaged_database, open_database
from oddlot.queue.server.job_store import JobStore
from oddlot.queue.server.processes import LocalProcesses
from oddlot.queue.server.queue_folder import QueueFolder, user_name
from oddlot.queue.server.queue_service import QueueService
from oddlot.queue.server.resources import Devices, count_cpus, gpu_indices
from oddlot.queue.server.slurm_commands import check_scheduler
from oddlot.queue.server.slurm_queue import SlurmQueue, check_policy

if TYPE_CHECKING:
    from fastapi import FastAPI

    Runs = Callable[[threading.Event], None]

PORT = 8641

log = logging.getLogger("oddlot.queue")


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server."""

    host: str = "127.0.0.1"
    port: int = PORT
    policy: str = "qssf_backfill"
    predictor: str = "learnt"
    cpus: int | None = None
    """Number of cores for jobs. Default: all."""
    gpus: int | None = None
    """Number of GPUs for jobs. Default: all."""
    pin: bool = False
    """Whether to bind jobs to cores."""
    grace: float = 30.0
    """Seconds from SIGTERM to SIGKILL."""
    longest_wait: float | None = 7 * 86_400.0
    """Seconds. Jobs that have waited longer come first."""
    slurm: bool = False
    """Whether to set the priorities of Slurm's jobs, and run no jobs."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raise UsageError if the port is in use or not allowed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(128)  # requests wait from now on
    except OSError as error:
        opened.close()
        reason = error.strerror or str(error)
        message = f"cannot listen on {host}, port {port}: {reason}. Name another port with --port"
        raise UsageError(message, "unusable_port", host=host, port=port, reason=reason) from error
    return opened


class QueueServer:
    """A server of a queue in a folder. Creating it takes the folder's lock and recovers the jobs."""

    def __init__(self, folder: QueueFolder, settings: ServerSettings, closing: ExitStack) -> None:
        policy = policy_of(settings.policy)  # before anything is written
        if settings.slurm:
            check_policy(policy, settings.policy)
        predictor_of(settings.predictor)
        folder.create()
        folder.lock(closing)
        self.folder, self.owner = folder, user_name()
        store = JobStore(open_database(folder.database))
        closing.callback(store.connection.close)
        self.token = folder.owner_token()
        store.replace_token(self.token, self.owner, time())
        run, api = self._slurm(settings, store) if settings.slurm else self._local(settings, store)
        self._run_jobs = run
        self.socket = closing.enter_context(listen(settings.host, settings.port))
        self.host, self.port = self.socket.getsockname()[:2]
        self.uvicorn = uvicorn.Server(
            uvicorn.Config(
                api,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=2,
            )
        )
        self.problem: Exception | None = None
        folder.write_address(self.host, self.port)

    def _local(self, settings: ServerSettings, store: JobStore) -> "tuple[Runs, FastAPI]":
        """Return what runs jobs on this machine, and its API."""
        gpus = gpu_indices() if settings.gpus is None else list(range(settings.gpus))
        cpus = count_cpus() if settings.cpus is None else settings.cpus
        machine = Machine(socket.gethostname(), len(gpus), cpus)
        policy = policy_of(settings.policy)
        scheduler = Scheduler(policy, [machine], longest_wait=settings.longest_wait)
        processes = LocalProcesses(self.folder, settings.grace)
        store.number_after(self.folder.last_job())
        for path in processes.unknown(store.running_attempts()):
            log.warning(
                "%s still runs, and is not in the database: it uses cores or GPUs that count as free", path
            )
        predictor = taught_predictor(settings.predictor, store.history())
        devices = Devices(gpus, cpus, pin=settings.pin)
        service = QueueService(store, scheduler, processes, devices, predictor)
        return service.run, create_api(service, processes, self.owner)

    @staticmethod
    def _slurm(settings: ServerSettings, store: JobStore) -> "tuple[Runs, FastAPI]":
        """Return what orders the jobs of Slurm, and its API. Raise SlurmError if Slurm does not reply."""
        check_scheduler()
        predictor = taught_predictor(settings.predictor, store.history())
        policy = policy_of(settings.policy)
        slurm = SlurmQueue(store, policy, predictor, settings.longest_wait)
        return slurm.run, create_slurm_api(slurm)

    @property
    def url(self) -> str:
        """Address of the page, with the owner's token."""
        return f"http://{self.host}:{self.port}/#{self.token}"

    def run(self) -> None:
        """Serve until a signal. Raise an error that ended the scheduler."""
        stopped = threading.Event()
        follower = threading.Thread(target=self._follow, args=(stopped,), daemon=True)
        follower.start()
        for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises a signal again after it has stopped
            signal.signal(number, lambda *_: None)
        try:
            self.uvicorn.run(sockets=[self.socket])
        finally:
            stopped.set()
            follower.join(timeout=10)
        if self.problem is not None:
            raise self.problem

    def _follow(self, stopped: threading.Event) -> None:
        try:
            self._run_jobs(stopped)
        except sqlite3.DatabaseError as error:
            self.problem = damaged_database(self.folder.database, str(error))
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self.problem = error
        self.uvicorn.should_exit = True
