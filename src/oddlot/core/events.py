"""Events that conductors and strategies receive. They are also the records of a log."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oddlot.core.peers import Drift, IncludedModel, PeerModel
from oddlot.core.tasks import Facts, NodeId, TaskId, UpdateId


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker joined and can be assigned tasks."""

    node: NodeId
    """Name of the worker."""
    dollars_per_hour: float = 0.0
    """Price of its machine, in dollars per hour."""
    zone: str = ""
    """Zone of its machine. `Priced` changes the price of a zone. Empty: the price is fixed."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """A worker got notice of a preemption. It finishes its tasks and must not be assigned new tasks."""

    node: NodeId
    """Name of the worker."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker was lost. The samples of its tasks are available again."""

    node: NodeId
    """Name of the worker."""
    cause: str | None = None
    """How its process ended or was silent while it computed a task, such as `SIGSEGV` or `exit code 3`, if the samples
    may be the reason. None if its machine was lost."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """An update arrived. It stays in the inbox until it is merged or dropped."""

    update: Facts
    """The update, without its tensors."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A task ended without an update: it was cancelled, rejected or timed out. Its samples are available again.

    A worker whose task timed out is still busy (`view.free` is 0). A second `Cancelled` for the same task follows when
    it is free.
    """

    task: TaskId
    """Id of the task."""
    node: NodeId
    """Name of its worker."""
    bytes_down: int = 0
    """Bytes of weights sent for the task, if its worker reported them."""
    bytes_data: int = 0
    """Bytes of samples sent for the task, if its worker reported them."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The model has a new version. Sent after a merge with `measure`, and after a merge that completes an epoch."""

    version: int
    """The new version."""
    norm: float | None = None
    """Euclidean norm of the change of the weights. None if not measured or not finite."""
    inner: float | None = None
    """Inner product of the merge directions, summed over a window of merges, with the sum over the previous window.
    Measured at the end of a window. None if not measured or not finite."""
    drift: Drift | None = None
    """Change of the weights since they were marked. None if not measured or not finite."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A version was evaluated."""

    version: int
    """The evaluated version."""
    metrics: Mapping[str, float]
    """Loss and metrics on the evaluation set, by name. Values that are not finite are left out."""


@dataclass(frozen=True, slots=True)
class RoundTimesFitted:
    """Estimated durations of rounds, fitted to the task times so far."""

    rounds: tuple[tuple[int, int, float], ...]
    """Rows of (k, samples, seconds): mean seconds until the fastest k workers finish tasks of `samples` samples."""


@dataclass(frozen=True, slots=True)
class AlarmFired:
    """An alarm that `Wake(at)` set is due."""

    at: float = 0.0
    """Time of the alarm, in seconds of the run's clock."""


@dataclass(frozen=True, slots=True)
class PeerJoined:
    """A peer of the mesh can be reached, for the first time or again."""

    peer: NodeId
    """Name of the peer."""


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A peer of the mesh was lost, or cannot be reached. It will not reply to requests."""

    peer: NodeId
    """Name of the peer."""


@dataclass(frozen=True, slots=True)
class ModelRequested:
    """A peer asks for this peer's weights."""

    peer: NodeId
    """Name of the peer."""
    tag: int
    """Tag that the reply must carry."""


@dataclass(frozen=True, slots=True)
class ModelReceived:
    """A peer's weights arrived. They stay in the inbox until they are merged or dropped."""

    model: PeerModel
    """The model, without its tensors."""
    bytes: int = 0
    """Bytes on the network."""
    seconds: float = 0.0
    """Seconds since the request, or since sending if it was pushed."""


@dataclass(frozen=True, slots=True)
class ModelRejected:
    """A peer's weights were rejected and not stored."""

    peer: NodeId
    """Name of the sender."""
    request_tag: int | None
    """Tag of the request that they reply to. None if they were pushed."""
    reason: str
    """Why they were rejected, as text."""
    code: str | None = None
    """Code of the `Rejection`, or None if they could not be read."""


Event = (
    Joined
    | Leaving
    | Lost
    | Arrived
    | Cancelled
    | Changed
    | Evaluated
    | RoundTimesFitted
    | AlarmFired
    | PeerJoined
    | PeerLost
    | ModelRequested
    | ModelReceived
    | ModelRejected
)
"""An event that a strategy receives."""


TOO_LARGE = "update_too_large"
"""Code of the rejection of an update with a norm far above the usual norm."""
NO_FIGURE = "update_without_figure"
"""Code of the rejection of an update without the figure that a gate compares."""
OUTSIDE_RANGE = "update_outside_range"
"""Code of the rejection of an update with a figure outside the range of recent updates."""


@dataclass(frozen=True, slots=True)
class UpdateRejected:
    """An update was rejected and not stored. Strategies receive `Cancelled`."""

    task: TaskId
    """Id of the update's task."""
    reason: str
    """Why it was rejected, as text."""
    code: str | None = None
    """Code of the `Rejection`, such as `TOO_LARGE`, or None if the update could not be read."""
    gate: str = ""
    """Name of the class of the run's gate that rejected it. Empty for the checks that every run has."""


@dataclass(frozen=True, slots=True)
class NewSegment:
    """The settings that a resumed run continues with, in a new segment."""

    strategy: Mapping[str, Any]
    """The strategy with its initial state, as plain data. A log can then be read without the strategy's class."""
    batch: int
    """Batch size of the job, in samples."""
    scheduled: bool = False
    """Whether the job has a learning rate schedule."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run was resumed from a checkpoint. Strategies receive `Lost` for every worker."""

    after_record: int
    """Number of valid records. The later records of the log are lost work."""
    samples_lost: int = 0
    """Samples assigned in the lost records."""
    dollars_lost: float = 0.0
    """Cost of the lost records, in dollars."""
    dollars_of_hub_lost: float = 0.0
    """Part of that cost for the hub, in dollars."""
    bytes_up_lost: int = 0
    """Bytes of updates in the lost records."""
    bytes_down_lost: int = 0
    """Bytes of weights in the lost records."""
    bytes_data_lost: int = 0
    """Bytes of samples in the lost records."""
    settings: Mapping[str, int | None] = field(default_factory=dict)
    """Settings that changed: `in_flight`, `least_slots`, `epochs`, `epoch_barrier`, `skip_bad`."""
    segment: NewSegment | None = None
    """The new segment of the run that starts here, or None if the current segment continues. Updates in the inbox and
    kept versions are then discarded, and no strategy receives `Lost`."""
    sources: tuple[IncludedModel, ...] = ()
    """On a mesh, the peers with models that the checkpoint averages."""


@dataclass(frozen=True, slots=True)
class FaultInjected:
    """A fault was injected. Strategies do not receive it; they see its effects."""

    fault: str
    """Name of the fault, as in `Chaos.named()`."""
    kind: str
    """Kind of the fault, such as `kill`."""
    node: NodeId
    """Name of the worker. Empty: the hub."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A price changed. Strategies do not receive it."""

    zone: str
    """Zone with this price. Empty: the hub."""
    dollars_per_hour: float
    """New price of a machine, in dollars per hour."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """A machine was ordered and is paid for from now on. It joins when it has started. Strategies do not receive it."""

    node: NodeId
    """Name of the worker that will run on the machine."""
    dollars_per_hour: float
    """Price of the machine, in dollars per hour."""
    zone: str = ""
    """Zone of the machine. Empty: none."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The machine was terminated and billing stopped. The hub detects the loss later. Strategies do not receive it."""

    node: NodeId
    """Name of its worker."""


@dataclass(frozen=True, slots=True)
class GoalReached:
    """A peer of a mesh has reached its share of the goal and gets no further task. Strategies do not receive it."""

    goal: str
    """The goal, or why the run ends before it is reached."""


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """The total bytes that a peer of a mesh sent to another peer, recorded at its end. Strategies do not receive it."""

    peer: NodeId
    """Name of the receiver."""
    bytes: Mapping[str, int]
    """Bytes by kind of message: `exchange`, `average`, `join` and `membership`."""
    os_bytes: int | None = None
    """Bytes that the receiver acknowledged, as counted by the operating system. None if not counted."""


@dataclass(frozen=True, slots=True)
class Averaged:
    """The first peer of a mesh averaged the models of all active peers. Strategies do not receive it."""

    peers: tuple[NodeId, ...]
    """Names of the peers."""
    disagreement: float
    """Root mean square distance of their models from the average, relative to the norm of the average."""
    bytes: int
    """Bytes of the models on the network."""
    records: tuple[int, ...] = ()
    """Number of records in the log of each peer when it sent its model."""
    is_final: bool = False
    """Whether the average is the model of the run, to be saved."""


@dataclass(frozen=True, slots=True)
class Combined:
    """The updates of the last merge were combined by a robust rule. Strategies do not receive it."""

    version: int
    """The new version."""
    left_out: Mapping[UpdateId, float]
    """Share of each update's values that the rule left out, from 0 (none) to 1 (the update was not used)."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run stopped. The time since the last record counts and was paid for. Strategies do not receive it."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """A timeout or an alarm is due. Strategies receive `Cancelled` or `AlarmFired`."""


Stimulus = (
    Event
    | UpdateRejected
    | Resumed
    | FaultInjected
    | Priced
    | Ordered
    | Gone
    | GoalReached
    | Averaged
    | Combined
    | LinkTraffic
    | Stopped
    | Ticked
)
"""An event that a conductor receives and a log records."""

__all__ = [
    "AlarmFired",
    "Arrived",
    "Averaged",
    "Cancelled",
    "Changed",
    "Combined",
    "Evaluated",
    "Event",
    "FaultInjected",
    "GoalReached",
    "Gone",
    "Joined",
    "Leaving",
    "LinkTraffic",
    "Lost",
    "ModelReceived",
    "ModelRejected",
    "ModelRequested",
    "NewSegment",
    "Ordered",
    "PeerJoined",
    "PeerLost",
    "Priced",
    "Resumed",
    "RoundTimesFitted",
    "Stimulus",
    "Stopped",
    "Ticked",
    "UpdateRejected",
]
