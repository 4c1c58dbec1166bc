"""The record: a line of the log."""

from dataclasses import dataclass
from typing import Any

from oddlot.core.commands import Action
from oddlot.core.events import Stimulus
from oddlot.core.tasks import NodeId

HUB: NodeId = ""
"""Host name of the hub. The hosts of a mesh have the names of their peers."""
ECHO = "echo"
"""Remark of a record with an update of a closed task. The update is not merged."""


@dataclass(frozen=True, slots=True)
class Record:
    """A line of the log: an event, its time, and the actions that followed."""

    now: float
    """Time of the event, in seconds of the run's clock."""
    event: Stimulus
    """The event."""
    actions: tuple[Action, ...] = ()
    """Actions that followed, in order."""
    remark: str = ""
    """`echo` marks an update that arrived too late to count."""
    peer: NodeId | None = None
    """Peer of a mesh with the record in its log. None if the record is in the hub's log."""


@dataclass(frozen=True, slots=True)
class HostState:
    """The state of a host in a checkpoint."""

    conductor: dict[str, Any]
    """State of its conductor, as plain data."""
    records: int
    """Number of records in its log."""
