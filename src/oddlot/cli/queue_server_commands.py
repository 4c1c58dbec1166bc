"""`oddlot queue serve`, `submit`, `ls`, `show`, `logs`, `cancel` and `token`."""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from oddlot.cli import options
from oddlot.core.support.errors import JobError, UsageError
from oddlot.core.support.text import printable

if TYPE_CHECKING:
    from oddlot.queue.server.client import QueueClient
    from oddlot.queue.server.queue_folder import QueueFolder

FOLDER = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the queue.",
        show_default="$ODDLOT_QUEUE, or in the user's state folder",
    ),
]
JOB = Annotated[int, typer.Argument(min=1, metavar="JOB", help="Number of the job.")]
PRIVATE = ("ODDLOT_QUEUE_TOKEN", "ODDLOT_QUEUE_JOB", "ODDLOT_QUEUE_ATTEMPT")
"""Variables that a job does not inherit from the submitter."""
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def serve(
    folder: FOLDER = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="N", help="Port.", show_default="8641")
    ] = None,
    policy: Annotated[
        str, typer.Option(metavar="NAME", help="Policy, or package.module:Class.")
    ] = "qssf_backfill",
    predictor: Annotated[
        str, typer.Option(metavar="NAME", help="learnt, rolling, or package.module:Class.")
    ] = "learnt",
    cpus: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Cores for jobs.", show_default="all")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="GPUs for jobs.", show_default="all")
    ] = None,
    pin: Annotated[bool, typer.Option("--pin", help="Bind jobs to cores.")] = False,
    grace: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Time from SIGTERM to SIGKILL.")
    ] = 30.0,
    longest_wait: Annotated[
        float, typer.Option(min=0, metavar="HOURS", help="Jobs that wait longer come first.")
    ] = 168.0,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Set priorities of Slurm's jobs, and run no jobs.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors and warnings only.")] = False,
) -> None:
    """Run the jobs of a queue on this machine, and serve its page.

    Jobs continue while no server runs. The next server finds them. With --slurm, it orders the pending jobs of Slurm.
    """
    from oddlot.queue.extra import extra

    for package in ("fastapi", "uvicorn"):
        extra(package, "the queue's server")
    from oddlot.queue.server.server import PORT, QueueServer, ServerSettings

    settings = ServerSettings(
        host=host,
        port=PORT if port is None else port,
        policy=policy,
        predictor=predictor,
        cpus=cpus,
        gpus=gpus,
        pin=pin,
        grace=grace,
        longest_wait=longest_wait * 3600,
        slurm=slurm,
    )
    with ExitStack() as closing:
        server = QueueServer(_folder(folder), settings, closing)
        if not quiet:
            print(f"{server.url} (the page, with your token), until Ctrl-C", flush=True)
        server.run()
        if not quiet:
            kept = (
                "Slurm's jobs keep their priorities"
                if slurm
                else "running jobs continue, and the next server finds them"
            )
            print(f"the server has stopped; {kept}", flush=True)


def submit(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="Command with its arguments, after the options.")
    ],
    gpus: Annotated[int, typer.Option(min=0, metavar="N", help="Number of GPUs.")] = 0,
    cpus: Annotated[int, typer.Option(min=0, metavar="N", help="Number of cores.")] = 1,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the job.", show_default="from the command")
    ] = None,
    cluster: Annotated[str, typer.Option(metavar="NAME", help="Virtual cluster: a group of users.")] = "",
    cwd: Annotated[
        str | None, typer.Option(metavar="DIR", help="Working folder.", show_default="this folder")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Environment variable. Repeatable.")
    ] = None,
    clean_env: Annotated[bool, typer.Option("--clean-env", help="Pass PATH, HOME and --env only.")] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="Resource limit, such as memory=8G. Repeatable."),
    ] = None,
    estimate: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Expected duration of a new kind of job.")
    ] = None,
    requeue: Annotated[
        bool | None,
        typer.Option(
            "--requeue/--no-requeue",
            help="Start again after a loss or preemption.",
            show_default="only for `oddlot train`",
        ),
    ] = None,
    folder: FOLDER = None,
    as_json: options.JSON = False,
) -> None:
    """Submit a command to the queue.

    It runs in this folder with this environment. `oddlot train` gets --resume auto, so that it continues its run after
    a preemption.
    """
    from oddlot.queue.server.training_command import job_name, planned_seconds, resuming_command

    submission = uuid4().hex
    name = job_name(command) if name is None else name
    content = {
        "id": submission,
        "command": resuming_command(command, f"runs/job-{submission[:8]}"),
        "cwd": str(Path(cwd or ".").expanduser().absolute()),
        "env": _environment(env or [], clean=clean_env),
        "gpus": gpus,
        "cpus": cpus,
        "name": name,
        "virtual_cluster": cluster,
        "limits": dict(_limit(each) for each in limit or []),
        "estimate": estimate if estimate is not None else planned_seconds(command),
        "requeue": requeue,
    }
    job = _client(folder).post("/api/jobs", content)
    print(json.dumps(job) if as_json else f"job {job['id']}")


def ls(
    everything: Annotated[bool, typer.Option("--all", help="List ended jobs too.")] = False,
    folder: FOLDER = None,
    as_json: options.JSON = False,
) -> None:
    """List the jobs of the queue, with their expected starts and ends."""
    from oddlot.queue.server.job_tables import queue_table

    found = _client(folder).get(f"/api/queue?ended={1000 if everything else 0}")
    if as_json:
        print(json.dumps(found))
        return
    for line in queue_table(found):
        print(printable(line))


def show(
    job: JOB,
    env: Annotated[bool, typer.Option("--env", help="Print its environment variables.")] = False,
    folder: FOLDER = None,
    as_json: options.JSON = False,
) -> None:
    """Show a job: its command, folder, limits, attempts and expected times.

    --json prints its environment too.
    """
    from oddlot.queue.server.job_tables import job_lines

    found = _client(folder).get(f"/api/jobs/{job}")
    if as_json:
        print(json.dumps(found))
        return
    for line in job_lines(found, env=env):
        print(printable(line))


def logs(
    job: JOB,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print until the job ends.")] = False,
    attempt: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of the start.", show_default="the last")
    ] = None,
    folder: FOLDER = None,
) -> None:
    """Print the output of a job."""
    from oddlot.queue.server.client import follow_output

    client = _client(folder)

    def write(content: bytes) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()

    content, headers = client.output(job, attempt, -1)
    if not content:
        print(f"job {job} is {headers['x-state']} and has no output", file=sys.stderr)
    if follow:
        follow_output(client, job, write, attempt=attempt)
        return
    start = 0
    while content:
        content, headers = client.output(job, attempt, start)
        write(content)
        start = int(headers["x-end"])


def cancel(
    jobs: Annotated[list[int], typer.Argument(min=1, metavar="JOB...", help="Numbers of jobs.")],
    folder: FOLDER = None,
    as_json: options.JSON = False,
) -> None:
    """Cancel jobs. Running ones get SIGTERM, and SIGKILL after the server's --grace."""
    client, code = _client(folder), 0
    for job in jobs:
        try:
            found = client.post(f"/api/jobs/{job}/cancel", {})
        except JobError as error:  # the disk is full, and to cancel another job may free it
            print(printable(f"job {job}: {error}"), file=sys.stderr)
            code = error.exit_code
            continue
        reason = f", {found['reason']}" if found["reason"] else ""
        print(json.dumps(found) if as_json else printable(f"job {job}: {found['state']}{reason}"))
    raise typer.Exit(code)


def token(
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Create a token of this system user.")
    ] = None,
    folder: FOLDER = None,
    as_json: options.JSON = False,
) -> None:
    """Print the address and the token of the queue, or create a token for another user.

    Only a server of root runs jobs of other users. A new token replaces the user's older one.
    """
    client = _client(folder)
    given = client.token if user is None else client.post("/api/tokens", {"user": user})["token"]
    if as_json:
        print(json.dumps({"url": client.url, "token": given, "page": f"{client.url}/#{given}"}))
    else:
        print(f"ODDLOT_QUEUE_URL={client.url}\nODDLOT_QUEUE_TOKEN={given}")


def _folder(given: str | None) -> "QueueFolder":
    from oddlot.queue.server.queue_folder import QueueFolder, default_folder

    return QueueFolder(Path(given).expanduser().absolute() if given else default_folder())


def _client(folder: str | None) -> "QueueClient":
    from oddlot.queue.server.client import QueueClient

    return QueueClient.find(_folder(folder))


def _environment(given: Sequence[str], *, clean: bool) -> dict[str, str]:
    """Return the environment of a job. Raise UsageError for an invalid variable."""
    kept = {name: value for name, value in os.environ.items() if not clean or name in {"PATH", "HOME"}}
    kept = {name: value for name, value in kept.items() if name not in PRIVATE}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            message = f"--env {each}: give NAME=VALUE"
            raise UsageError(message, "invalid_value", flag=f"--env {each}")
        kept[name] = value
    return kept


def _limit(given: str) -> tuple[str, int]:
    """Return the name and the value of a limit, such as `memory=8G`. Raise UsageError for another form."""
    name, _, value = given.partition("=")
    digits = value.rstrip("kKmMgGtTB")
    unit = value[len(digits) :].removesuffix("B").lower()
    if not digits.isdecimal() or unit not in UNITS:
        message = f"--limit {given}: give NAME=N, such as memory=8G"
        raise UsageError(message, "invalid_value", flag=f"--limit {given}")
    return name, int(digits) * UNITS[unit]
