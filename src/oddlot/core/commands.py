"""Commands: what a strategy asks for, in the imperative, and the actions that the conductor makes of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from oddlot.core.spans import Span
from oddlot.core.tasks import Kind, NodeId, Task, TaskId, UpdateId


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
    """seconds until the task times out, or more if the node has been slower than that; None: learnt from its speed"""
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


# --- actions: commands made concrete -------------------------------------------------------------


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
