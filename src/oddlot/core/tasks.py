"""Tasks and what comes back of them: the words that strategies, conductors and engines share.

Everything here is small, printable, comparable and deterministic. Tensors never appear: an update is
known by the id of the task that made it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from oddlot.core.spans import Span

NodeId = str
"""A worker's name, `w1`. Never reused: its replacement is `w1.2`."""
TaskId = str
"""A task's name, `w1:17`, and the name of the update that it brings. Never reused."""
UpdateId = TaskId

Kind = Literal["gradient", "delta", "weights"]
"""What a task brings back. `gradient` (mean over its samples) and `delta` (start minus end of local
steps) are directions, merged by `Step`; `weights` (the end of local steps) is a point, merged by `Blend`."""


def life_name(machine: str, life: int) -> NodeId:
    """Return the id of a machine's worker: `w1` in its first life, `w1.2` in its second."""
    return machine if life == 1 else f"{machine}.{life}"


def machine_of(node: NodeId) -> str:
    """Return the machine of a worker: `w1` of `w1.2`."""
    return node.partition(".")[0]


def task_name(node: NodeId, number: int) -> TaskId:
    """Return the id of a node's task: `w1:17`."""
    return f"{node}:{number}"


def node_of(task: TaskId) -> NodeId:
    """Return the node of a task: `w1` of `w1:17`. Empty for text that is no task id."""
    return task.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work: compute on these samples from that version, and answer with this kind."""

    id: TaskId
    node: NodeId
    spans: tuple[Span, ...]
    version: int
    kind: Kind = "gradient"
    pull: float | None = None
    """start where the node's last task of this sort ended, moved so far (0 to 1) towards the version; None, or a node
    that has ended none yet: start from the version"""
    merged: int | None = None
    """samples merged or skipped when it was made, for the schedule of its local steps; None where there is none"""


@dataclass(frozen=True, slots=True)
class Facts:
    """The small side of an update; its tensors stay in the store under `id`."""

    id: UpdateId
    sender: NodeId
    based_on: int
    """the version that the task started from"""
    samples: int
    """how many were computed: a prefix of the task's spans; the rest goes back"""
    kind: Kind = "gradient"
    loss: float | None = None
    """mean over the samples; None when unknown or not finite"""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """where the time went: `down`, `load`, `compute`, `up`"""
    bytes_down: int = 0
    bytes_up: int = 0
    bytes_data: int = 0
    """of samples that had to be brought to the worker for it"""
    read: int | None = None
    """the version on top of which its server will write it, where the hub's store overwrites (see `Hub`); None: the
    newest"""
