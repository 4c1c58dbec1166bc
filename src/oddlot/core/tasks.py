"""Tasks and updates, as strategies, conductors and engines see them.

They are small and comparable, and have no tensors: an update is identified by the id of its task.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from oddlot.core.sample_spans import Span

NodeId = str
"""Name of a worker, such as `w1`. Never reused: its replacement is `w1.2`."""
TaskId = str
"""Id of a task and of its update, such as `w1:17`. Never reused."""
UpdateId = TaskId

Kind = Literal["gradient", "sum", "delta", "weights"]
"""Kind of an update. `gradient` (mean over the samples), `sum` (sum of gradients over the samples, added in a fixed
order, see `sum_tree`) and `delta` (weights before minus after local steps) are merged by `Step`; `weights` (after local
steps) are merged by `Blend`."""
GRADIENT_KINDS: tuple[Kind, ...] = ("gradient", "sum")
"""Kinds of updates that are computed from unchanged weights."""


def worker_name(machine: str, life: int) -> NodeId:
    """Return the name of a machine's worker: `w1` for the first worker, `w1.2` for the second."""
    return machine if life == 1 else f"{machine}.{life}"


def machine_of(node: NodeId) -> str:
    """Return the machine of a worker: `w1` of `w1.2`."""
    return node.partition(".")[0]


def worker_number(node: NodeId) -> int:
    """Return the number of a machine's worker, from 1: 2 of `w1.2`."""
    number = node.partition(".")[2]
    return int(number) if number.isdecimal() else 1


def task_name(node: NodeId, number: int) -> TaskId:
    """Return the id of a node's task: `w1:17`."""
    return f"{node}:{number}"


def node_of(task: TaskId) -> NodeId:
    """Return the node of a task: `w1` of `w1:17`. Empty if the text is not a task id."""
    return task.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class Task:
    """A unit of work: samples to process from one version of the model."""

    id: TaskId
    """Id of the task."""
    node: NodeId
    """Name of its worker."""
    spans: tuple[Span, ...]
    """Samples, as intervals of positions in the shuffled order of an epoch."""
    version: int
    """Version that it starts from."""
    kind: Kind = "gradient"
    """Kind of its update."""
    pull: float | None = None
    """Start from the weights at the end of the worker's last task with `pull`, moved by this share (0 to 1) towards the
    version. If None, start from the version, as a worker's first task does."""
    merged: int | None = None
    """Samples merged or skipped when it was assigned, for the learning rates of its local steps and for parameters that
    are frozen at first. None without either."""


class TaskLoss(NamedTuple):
    """The loss of a task."""

    mean: float | None = None
    """Mean loss over the samples. None if unknown or not finite."""
    weight: int | None = None
    """Weight of the update. None: its samples."""
    others: Mapping[str, float] | None = None
    """Means of further losses, by name. None if there are none."""


@dataclass(frozen=True, slots=True)
class Facts:
    """An update without its tensors. The store keeps them under `id`."""

    id: UpdateId
    """Id of the update, equal to the id of its task."""
    sender: NodeId
    """Name of its worker."""
    based_on: int
    """Version that its task started from."""
    samples: int
    """Number of computed samples, from the start of the task. The others are available again."""
    kind: Kind = "gradient"
    """Kind of the update."""
    loss: float | None = None
    """Mean loss over the samples. None if unknown or not finite."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the task, by phase: `down`, `load`, `compute`, `up`."""
    bytes_down: int = 0
    """Bytes of weights sent for it."""
    bytes_up: int = 0
    """Bytes of the update."""
    bytes_data: int = 0
    """Bytes of samples sent for it."""
    read: int | None = None
    """Version that its server read, if the hub's store overwrites updates (see `Hub`). If None, the newest version."""
    weight: int | None = None
    """Weight of the update, if the job's loss returns weights, such as numbers of tokens. None: its samples."""
    losses: Mapping[str, float] | None = None
    """Further losses of the job, by name: their means over the samples. None if there are none."""

    @property
    def weight_merged(self) -> int:
        """Return the weight of the update in a mean of several."""
        return self.samples if self.weight is None else self.weight
