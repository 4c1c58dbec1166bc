"""The words that strategies, conductors and engines share: facts in the past tense, wishes in the imperative.

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


# --- events: what happened ---------------------------------------------------------------------


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
    """A task ended without an update: cancelled, refused, or out of time; its samples have gone back.

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
"""What a strategy is told."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An update had bad numbers and was not stored; strategies are told `Cancelled`."""

    task: TaskId
    reason: str


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


# --- commands: what a strategy wishes ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assign:
    """Lease up to `samples` samples to `node`, or one more that would be left alone.

    Nothing happens when no samples are left to lease.
    """

    node: NodeId
    samples: int
    kind: Kind = "gradient"
    version: int | None = None
    """start from this kept version; None: from the newest"""
    shard: int | None = None
    """lease from this shard of the data; None: the ledger chooses"""
    again: TaskId | None = None
    """lease the samples of this open task a second time; the first arrival wins, and the others are aborted"""
    deadline: float | None = None
    """seconds until the lease lapses, or more if the node has been slower than that; None: learnt from its speed"""
    pull: float | None = None
    """let the node start from its own weights, moved so far towards the version: see `Task`"""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a task: its samples go back now, its node is free when it has answered."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class HandOver:
    """Have a task's node answer with what it has done at the end of the minibatch that it computes: a prefix of the
    samples. The task stays open until then."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Measure the current or a kept version on the evaluation set; `Evaluated` follows."""

    version: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the rule along the sum of share x direction.

    `measure` asks for `Changed`. Its `inner` comes at the end of each window of so many measured merges in a row, from
    the second window on; when a run goes on after an end of the hub, windows begin anew.
    """

    shares: Mapping[UpdateId, float]
    measure: int = 0
    merged: int | None = None
    """the books' to say: samples merged or skipped before a step along gradients, for its schedule; None where there is
    none"""


@dataclass(frozen=True, slots=True)
class Blend:
    """Move towards points: W <- (1 - sum of shares) W + sum of share x point. `measure` as of `Step`."""

    shares: Mapping[UpdateId, float]
    measure: int = 0


@dataclass(frozen=True, slots=True)
class Drop:
    """Throw an update away; its samples go back to be computed again."""

    update: UpdateId


@dataclass(frozen=True, slots=True)
class Keep:
    """Hold the current version, so that tasks can start from it later."""

    version: int


@dataclass(frozen=True, slots=True)
class Release:
    """Let a kept version go."""

    version: int


@dataclass(frozen=True, slots=True)
class Wake:
    """Ring at this time (seconds on the run's clock). Several alarms may be set."""

    at: float


Command = Assign | Cancel | HandOver | Evaluate | Step | Blend | Drop | Keep | Release | Wake


# --- actions: wishes made concrete -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Give this task to its node."""

    task: Task


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell this task's node to stop at its next minibatch."""

    task: TaskId
    node: NodeId


@dataclass(frozen=True, slots=True)
class Evict:
    """Kill this worker, which has hung; `Lost` follows."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Skip:
    """These samples are given up: they count as done, and do not reach the model."""

    spans: tuple[Span, ...]


Action = Start | Abort | Evict | Skip | HandOver | Evaluate | Step | Blend | Drop | Keep | Release


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the log: what happened when, and what was decided."""

    now: float
    event: Stimulus
    actions: tuple[Action, ...] = ()
    remark: str = ""
    """`echo` marks an answer that came too late to count"""
