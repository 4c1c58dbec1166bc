"""The start of a new segment of a run, with another strategy or batch size.

The samples, the version, the clock and the random generator continue. Everything that the earlier strategy requested is
discarded: its alarms, its updates in the inbox, with their samples returned, and the versions that it kept.
"""

from collections.abc import Iterator
from typing import Protocol

from oddlot.core.commands import Action, Command, Drop, Release
from oddlot.core.conductor_commands import ConductorParts, carry_out
from oddlot.core.events import NewSegment
from oddlot.core.strategy import Strategy
from oddlot.core.support.serialization import from_plain
from oddlot.core.task_timeouts import TaskTimeouts
from oddlot.core.worker_stats import WorkerStats


class SegmentState(ConductorParts, Protocol):
    """The state of a conductor that a new segment changes."""

    strategy: Strategy


def start_segment(state: SegmentState, segment: NewSegment) -> Iterator[Action]:
    """Change a conductor without workers to the settings of a new segment, and yield the actions for the host.

    Raise one of `DAMAGED` if the strategy cannot be read, or if its class is not loaded.
    """
    state.strategy = from_plain(Strategy, segment.strategy)
    state.batch, state.scheduled = segment.batch, segment.scheduled
    discarded: list[Command] = [Drop(update) for update in state.inbox]
    discarded += [Release(int(version)) for version, holds in state.kept.items() for _ in range(holds)]
    for command in discarded:
        action, _ = carry_out(state, command)
        if action is not None:
            yield action
    state.alarms.clear()
    # Task times of the earlier strategy say nothing about those of the new one.
    state.worker_stats, state.timeouts = WorkerStats(), TaskTimeouts()
