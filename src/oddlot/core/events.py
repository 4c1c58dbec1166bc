"""Events: what happened, in the past tense."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from oddlot.core.tasks import Facts, NodeId, TaskId


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker is here and may be given work; it costs this much while it is here."""

    node: NodeId
    dollars_per_hour: float = 0.0
    zone: str = ""
    """where it was bought: see `Priced`"""


@dataclass(frozen=True, slots=True)
class Leaving:
    """A worker will vanish soon: it finishes what it has and gets nothing more."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker is gone; what it was computing has gone back to the ledger."""

    node: NodeId
    cause: str | None = None
    """how its process ended while it computed a task, if its samples may be why (`SIGSEGV`, `exit code 3`); None for a
    machine that was lost"""


@dataclass(frozen=True, slots=True)
class Arrived:
    """An update is in the inbox and waits to be stepped, blended or dropped."""

    update: Facts


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A task ended without an update: cancelled, rejected, or out of time; its samples have gone back.

    A worker that ran out of time is still busy then (`view.free` is 0); a second `Cancelled` for the
    same task says that it is free again.
    """

    task: TaskId
    node: NodeId
    bytes_down: int = 0
    """that had been sent for it by then, where its worker has told"""
    bytes_data: int = 0


@dataclass(frozen=True, slots=True)
class Changed:
    """The model moved to `version`: sent after a merge that asked for `measure` or closed an epoch.

    `norm` is the Euclidean length of the change of the weights; `inner` the inner product of its direction, summed
    over the window that it is the last of, with the sum of the window before. None where they were not measured, or are
    not finite.
    """

    version: int
    norm: float | None = None
    inner: float | None = None


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The metrics of a version on the evaluation set."""

    version: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Fitted:
    """What rounds take, fitted to what was measured so far.

    Rows of (k, samples, seconds): the mean time until the fastest k of the workers have answered, each of whom was
    given so many samples.
    """

    rounds: tuple[tuple[int, int, float], ...]


@dataclass(frozen=True, slots=True)
class Rang:
    """The alarm that a `Wake(at)` had set."""

    at: float = 0.0


Event = Joined | Leaving | Lost | Arrived | Cancelled | Changed | Evaluated | Fitted | Rang
"""An event that a strategy receives."""


TOO_LARGE = "update_too_large"
"""Code of the rejection of an update whose norm is far above the usual one."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An update was rejected and not stored; strategies are told `Cancelled`."""

    task: TaskId
    reason: str
    code: str | None = None
    """Code of the `Refusal`, such as `TOO_LARGE`; None if the update could not be read."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run goes on from a checkpoint: of its log, the records from number `after_record` on are lost
    work. Strategies are told `Lost` for everyone they knew."""

    after_record: int
    samples_lost: int = 0
    """that had been given out in those records"""
    dollars_lost: float = 0.0
    """that they had cost"""
    dollars_of_hub_lost: float = 0.0
    """of these"""
    bytes_up_lost: int = 0
    bytes_down_lost: int = 0
    bytes_data_lost: int = 0
    """that had travelled in them"""
    settings: Mapping[str, int | None] = field(default_factory=dict)
    """that are otherwise from here on: `in_flight`, and the ledger's `epochs`, `epoch_barrier` and `skip_bad`"""


@dataclass(frozen=True, slots=True)
class Struck:
    """Misfortune on purpose: the fault of this name in `Chaos.named()` has struck the node (empty: the hub).

    Strategies are not told; they see what comes of it.
    """

    fault: str
    kind: str
    node: NodeId


@dataclass(frozen=True, slots=True)
class Priced:
    """The machines that were bought in this zone, or the hub (empty), cost this much from now on.

    Strategies are not told.
    """

    zone: str
    dollars_per_hour: float


@dataclass(frozen=True, slots=True)
class Ordered:
    """A machine is paid for from now on, and will join when it has started. Strategies are not told."""

    node: NodeId
    dollars_per_hour: float
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """A machine is gone and costs nothing any more, which the hub will notice later, if it had joined. Strategies are
    not told.
    """

    node: NodeId


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run stops here, perhaps to go on later: what has passed since the last record was lived through and paid for.
    Strategies are not told.
    """


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed and a deadline or an alarm is due; strategies are told `Rang` or `Cancelled`."""


Stimulus = Event | Refused | Resumed | Struck | Priced | Ordered | Gone | Stopped | Ticked
"""What a conductor is told, and what a log holds."""
