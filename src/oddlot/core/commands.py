"""Commands that strategies return, and the actions that the conductor derives from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from oddlot.core.peers import ModelId, PeerModel
from oddlot.core.sample_spans import Span
from oddlot.core.tasks import Kind, NodeId, Task, TaskId, UpdateId

DriftOf = Literal["model", "layers"]
"""Drift that a step measures: of the model only, or also of each layer."""


@dataclass(frozen=True, slots=True)
class Assign:
    """Assign a task to a worker. Does nothing if no samples are left."""

    node: NodeId
    """Name of the worker. It must have a free slot."""
    samples: int
    """Largest number of samples. A single sample that would be left over is added."""
    kind: Kind = "gradient"
    """Kind of the update: `gradient`, `sum`, `delta` or `weights`."""
    version: int | None = None
    """Kept version that the task starts from. If None, the newest version."""
    shard: int | None = None
    """Number of the shard to take samples from. If None, any shard."""
    copy_of: TaskId | None = None
    """Open task whose samples are assigned a second time. The first update counts, and the other task is aborted."""
    deadline: float | None = None
    """Seconds until the task times out; longer for workers known to be slower. If None, it is estimated from the
    worker's speed."""
    pull: float | None = None
    """Start from the worker's own weights, moved by this share (0 to 1) towards the version. See `Task`."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a task. Its samples are available immediately. Its worker is free once it has acknowledged the
    cancellation."""

    task: TaskId
    """Id of an open task."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """End a task after its current minibatch. Its update covers the samples computed until then."""

    task: TaskId
    """Id of an open task. It stays open until its update arrives."""


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate a version. `Evaluated` follows."""

    version: int
    """The newest version or a kept version."""


@dataclass(frozen=True, slots=True)
class Step:
    """Merge gradients, sums or deltas: one optimizer step with the sum of share x update."""

    shares: Mapping[UpdateId, float]
    """Share of each update, at least 0. Updates of kind `sum` have equal shares, and together are a contiguous range of
    samples."""
    measure: int = 0
    """Window length for `Changed`, in merges. 0: no `Changed` follows. Windows start again after a resume."""
    merged: int | None = None
    """Set by the conductor: samples merged or skipped before, for the learning rate schedule. None without a
    schedule."""
    drift: DriftOf | None = None
    """Kind of change since the last `Mark` to measure. `Changed` then follows. If None, nothing is measured."""
    chunks: tuple[int, ...] | None = None
    """Set by the conductor for updates of kind `sum`, with the shares in the order of samples: number of chunks of each
    update (see `sum_tree`)."""


@dataclass(frozen=True, slots=True)
class Blend:
    """Merge weights: W <- (1 - sum of shares) W + sum of share x weights."""

    shares: Mapping[UpdateId, float]
    """Share of each update, at least 0."""
    measure: int = 0
    """Window length, as in `Step`."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Discard an update or a peer's model. The samples of an update are computed again."""

    update: UpdateId | ModelId
    """Id of an update or of a peer's model in the inbox."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep a version for later tasks to start from. At most 16 versions are kept."""

    version: int
    """The newest version or a kept version. Each `Keep` needs a `Release` of its own."""


@dataclass(frozen=True, slots=True)
class Release:
    """Release a kept version."""

    version: int
    """A kept version."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Set an alarm. `AlarmFired` follows. Several alarms can be set."""

    at: float
    """Time of the alarm, in seconds of the run's clock."""


@dataclass(frozen=True, slots=True)
class Request:
    """Ask a peer for its weights. `ModelReceived`, `ModelRejected` or `PeerLost` follows unless a message is lost."""

    peer: NodeId
    """Name of a peer."""
    tag: int
    """Tag that the reply will carry."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send the current weights to a peer."""

    peer: NodeId
    """Name of a peer."""
    request_tag: int | None = None
    """Tag of the peer's request, or None if the peer did not request them."""
    reply_tag: int | None = None
    """Tag that the peer's reply will carry, or None if no reply is expected."""
    loss: float | None = None
    """Running training loss, for the receiver."""
    weight: float = 1.0
    """Sum weight that is passed to the peer, for push-sum averaging."""
    layers: tuple[int, ...] | None = None
    """Numbers of the trainable parameters to send, in the layout's order. If None, all parameters."""


@dataclass(frozen=True, slots=True)
class Average:
    """Average models of peers into this peer's model: W <- (1 - sum of shares) W + sum of share x weights.

    Layers that a received model lacks keep their values.
    """

    shares: Mapping[ModelId, float]
    """Share of each model, from 0 to below 1. Together they are below 1: the model keeps its own samples."""
    keep: bool = False
    """Whether the models stay in the inbox, for later averages."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Copy the layers that a peer's model lacks from an older model of this peer, and drop the older model."""

    model: ModelId
    """Id of the newer model in the inbox."""
    older: ModelId
    """Id of the older model in the inbox."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark the current weights: `Step(drift=...)` measures the distance from them."""


Command = (
    Assign
    | Cancel
    | HandOver
    | Evaluate
    | Step
    | Blend
    | Drop
    | Keep
    | Release
    | Wake
    | Request
    | Send
    | Average
    | Complete
    | Mark
)


# --- actions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Send a task to its worker."""

    task: Task
    """The task, with its leased samples."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell a worker to stop a task at its next minibatch."""

    task: TaskId
    """Id of the task."""
    node: NodeId
    """Name of its worker."""


@dataclass(frozen=True, slots=True)
class Evict:
    """Kill a worker that hangs. `Lost` follows."""

    node: NodeId
    """Name of the worker."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Skip samples: they count as done and are not merged."""

    spans: tuple[Span, ...]
    """Positions of the samples: rows of (epoch, start, stop)."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the current weights to a peer."""

    peer: NodeId
    """Name of the peer."""
    model: PeerModel
    """The model, without its tensors."""


Action = (
    Start
    | Abort
    | Evict
    | Skip
    | HandOver
    | Evaluate
    | Step
    | Blend
    | Drop
    | Keep
    | Release
    | Request
    | Dispatch
    | Average
    | Complete
    | Mark
)

__all__ = [
    "Abort",
    "Action",
    "Assign",
    "Average",
    "Blend",
    "Cancel",
    "Command",
    "Complete",
    "Dispatch",
    "Drop",
    "Evaluate",
    "Evict",
    "HandOver",
    "Keep",
    "Mark",
    "Release",
    "Request",
    "Send",
    "Skip",
    "Start",
    "Step",
    "Wake",
]
