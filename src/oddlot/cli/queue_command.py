"""`oddlot queue`: a queue of training jobs."""

from functools import partial

import typer

from oddlot.cli import queue_server_commands as server
from oddlot.cli.plain_command import PlainCommand, PlainGroup
from oddlot.cli.queue_replay_command import replay
from oddlot.cli.queue_trace_commands import analyze, park

queue = typer.Typer(
    cls=PlainGroup,
    help="Queue training jobs, and replay logs of jobs under other policies.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
command = partial(queue.command, cls=PlainCommand)


@queue.callback()
def common() -> None:
    """Hold the options of all commands of the queue."""


command()(replay)
command()(analyze)
command()(park)
command()(server.serve)
command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(server.submit)
command()(server.ls)
command()(server.show)
command()(server.logs)
command()(server.cancel)
command()(server.token)
