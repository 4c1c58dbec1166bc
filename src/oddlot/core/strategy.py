"""The base class of strategies, and their view of a run."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Protocol

from oddlot.core.commands import Assign, Command
from oddlot.core.events import Event
from oddlot.core.optimizers import Optimizer
from oddlot.core.peers import ModelId, PeerModel, Peers
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.sample_spans import Span
from oddlot.core.support.serialization import saved_by_place
from oddlot.core.tasks import Facts, Kind, NodeId, Task, TaskId, UpdateId
from oddlot.core.worker_stats import WorkerStats

STATE = MappingProxyType({"state": True})
"""Metadata that marks a field as runtime state. dict and list fields are always state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Properties of a strategy that are known before a run starts."""

    server_optimizer: Optimizer | None = None
    """Optimizer at the hub. If None, the job's optimizer."""
    epoch_barrier: bool = False
    """Whether an epoch starts only when the previous epoch is completely merged."""
    shard_tasks: bool = False
    """Whether a task is a complete shard of the data."""
    clients: int = 0
    """Shards of a round, if a task is a complete shard. 0: one per worker."""
    waits_for_all: bool = False
    """Whether a round waits for every worker, and ends with one step that applies all updates."""
    exact: bool = False
    """Whether updates are sums over chunks of samples, so that the bits of the model do not depend on the workers."""
    hands_over: bool = False
    """Whether tasks may be ended early by `HandOver`."""
    varies_loads: bool = False
    """Whether workers get tasks of different sizes."""
    reads_gradients: bool = False
    """Whether the strategy adapts to the `norm` or `inner` of `Changed`."""
    measured_loads: tuple[int, ...] = ()
    """Task sizes, in samples. The strategy receives estimated durations of rounds for them (`RoundTimesFitted`)."""
    mesh: bool = False
    """Whether every worker is a peer with a model of its own, without a hub."""
    local_steps: bool = False
    """Whether workers take local steps of one minibatch each."""
    task_samples: int | None = None
    """Samples of the largest task. None if not known before a run."""
    task_setting: str = ""
    """Setting that determines `task_samples`, such as `samples`."""
    updates: int | None = None
    """Updates of the first step. If None, one per worker."""
    quorum: float = 1.0
    """Share of the updates that a step waits for."""
    single_updates: bool = False
    """Whether every merge has a single update, so that a merge cannot compare updates."""
    step_samples: int | None = None
    """Least samples of one step. If None, `updates` times `task_samples`."""


@saved_by_place
class Strategy(ABC):
    """Base class of strategies. A strategy decides which tasks to assign and how to merge updates.

    A strategy is a dataclass of settings and small state: dicts, lists, strings and numbers. It can then be copied,
    compared and saved. It must not use clocks, I/O, tensors or globals. Only `on` is required; override `traits` and
    `validate` if the defaults do not fit.
    """

    @abstractmethod
    def on(self, event: Event, view: "View") -> Iterable[Command]:
        """Return commands in response to an event. They are executed after the last command is returned."""

    def traits(self, batch_size: int) -> Traits:
        """Return the strategy's properties for a job with this batch size."""
        return Traits()

    def validate(self, workers: int, metrics: Collection[str]) -> None:  # noqa: B027 - most strategies run anywhere
        """Raise UsageError if the strategy cannot run with this many workers, or needs a metric that is missing."""


class ConductorState(Protocol):
    """The state of a conductor that a `View` reads."""

    now: float
    version: int
    ledger: SampleLedger
    batch: int
    slots: dict[NodeId, int]
    idle: dict[NodeId, None]
    stalled: dict[NodeId, None]
    busy: dict[NodeId, dict[TaskId, float]]
    open: dict[TaskId, Task]
    kept: dict[str, int]
    rng: Random
    worker_stats: WorkerStats
    peers: Peers

    def expects(self, task: TaskId) -> bool:
        """Return whether an update of this task would count."""

    def staleness(self, version: int) -> int:
        """Return the number of merges since a version."""


@dataclass(frozen=True, slots=True)
class View:
    """A read-only view of a run, valid during a call of `on`."""

    _state: ConductorState

    @property
    def now(self) -> float:
        """Return the time, in seconds of the run's clock."""
        return self._state.now

    @property
    def version(self) -> int:
        """Return the newest version: the number of merges."""
        return self._state.version

    @property
    def epoch(self) -> int:
        """Return the oldest epoch that is not completely merged."""
        return self._state.ledger.epoch

    @property
    def samples(self) -> int:
        """Return the samples merged or skipped so far, over all epochs."""
        return self._state.ledger.merged_in_all

    @property
    def batch(self) -> int:
        """Return the job's batch size, in samples."""
        return self._state.batch

    @property
    def shard_samples(self) -> int:
        """Return the number of samples of the largest shard; of the dataset if it has no shards."""
        return self._state.ledger.shard_samples

    @property
    def shards_left(self) -> int:
        """Return the number of shards with samples to assign now."""
        return self._state.ledger.shards_left

    @property
    def work_left(self) -> bool:
        """Return whether there are samples to assign now."""
        return self._state.ledger.work_left

    @property
    def free_spans(self) -> Sequence[Span]:
        """Return the samples to assign now, in the order of assignment, if the data have no shards. Returned samples
        are first; the other samples are of one epoch."""
        return self._state.ledger.free_spans

    @property
    def me(self) -> NodeId:
        """Return the name of this peer of a mesh; empty in a run with a hub."""
        return self._state.peers.me

    @property
    def peers(self) -> Collection[NodeId]:
        """Return the other active peers of a mesh, in the order of joining."""
        return self._state.peers.living.keys()

    @property
    def mesh(self) -> Collection[NodeId]:
        """Return the active peers of a mesh, this one included, by the number of their machine."""
        return self._state.peers.in_order()

    @property
    def machines(self) -> Collection[str]:
        """Return the machines of a mesh, including lost machines, in the order of their numbers."""
        return self._state.peers.machines

    @property
    def models(self) -> Mapping[ModelId, PeerModel]:
        """Return the received models of peers that are neither merged nor dropped yet."""
        return MappingProxyType(self._state.peers.models)

    @property
    def nodes(self) -> Collection[NodeId]:
        """Return the workers that can be assigned tasks, in the order of joining."""
        return self._state.slots.keys()

    @property
    def idle(self) -> Collection[NodeId]:
        """Return the workers with a free slot."""
        return self._state.idle.keys()

    @property
    def stalled(self) -> Collection[NodeId]:
        """Return workers whose only outstanding tasks were cancelled or timed out and are not yet acknowledged."""
        return self._state.stalled.keys()

    def has_no_task(self, node: NodeId) -> bool:
        """Return whether a worker can be assigned tasks and has no task, not even a cancelled or timed-out task."""
        return node in self._state.slots and not self._state.busy[node]

    @property
    def tasks(self) -> Mapping[TaskId, Task]:
        """Return the open tasks: assigned, and neither finished, cancelled nor timed out."""
        return MappingProxyType(self._state.open)

    @property
    def rng(self) -> Random:
        """Return the strategy's random generator."""
        return self._state.rng

    @property
    def worker_stats(self) -> WorkerStats:
        """Return statistics of the workers: speed, merges and drops."""
        return self._state.worker_stats

    def since(self, task: TaskId) -> float:
        """Return when an open task was assigned, in seconds of the run's clock."""
        return self._state.busy[self.tasks[task].node][task]

    def is_needed(self, task: TaskId) -> bool:
        """Return whether an update of an open task would count: its samples were not skipped since."""
        return self._state.expects(task)

    def can_start_from(self, version: int) -> bool:
        """Return whether tasks can start from a version: it is the newest or kept."""
        return version == self.version or str(version) in self._state.kept

    def free(self, node: NodeId) -> int:
        """Return the number of further tasks that a worker can be assigned now, 0 for an unknown worker."""
        return self._state.slots.get(node, 0)

    def staleness(self, update: Facts) -> int:
        """Return the staleness of an update, in versions."""
        return self._state.staleness(update.based_on)


@dataclass(frozen=True, slots=True)
class Narrowed(View):
    """The view of a wrapped strategy: a subset of the idle workers, with one slot each, and of the open tasks."""

    shown_idle: Mapping[NodeId, None]
    shown_tasks: Mapping[TaskId, Task]

    @property
    def idle(self) -> Collection[NodeId]:
        """Return the idle workers that are shown."""
        return self.shown_idle.keys()

    @property
    def tasks(self) -> Mapping[TaskId, Task]:
        """Return the open tasks that are shown."""
        return self.shown_tasks

    def free(self, node: NodeId) -> int:
        """Return 1 if the worker is shown as idle, else 0."""
        return int(node in self.shown_idle)

    def since(self, task: TaskId) -> float:
        """Return when a task was assigned; now, if it is finished but still shown as open."""
        return self._state.busy.get(self.tasks[task].node, {}).get(task, self.now)

    @classmethod
    def of(cls, view: View, idle: Mapping[NodeId, None], tasks: Mapping[TaskId, Task]) -> "Narrowed":
        """Return a view of the same moment with these idle workers and tasks."""
        return cls(view._state, idle, tasks)


def assign(
    view: View, node: NodeId, samples: int, kind: Kind = "gradient", deadline: float | None = None
) -> Iterator[Command]:
    """Yield a task of `samples` samples for every free slot of a worker."""
    for _ in range(view.free(node)):
        yield Assign(node, samples, kind, deadline=deadline)


def assign_all(
    view: View, samples: int, kind: Kind = "gradient", deadline: float | None = None
) -> Iterator[Command]:
    """Yield a task for every free slot of every worker, at the start of a round.

    If all workers are idle, they get their tasks in the order of joining. Each then gets the samples that it loads
    ahead.
    """
    all_idle = len(view.idle) == len(view.nodes) and not view.stalled
    for node in view.nodes if all_idle else view.idle:
        yield from assign(view, node, samples, kind, deadline)


def assign_idle(
    view: View, samples: int, kind: Kind = "gradient", deadline: float | None = None
) -> Iterator[Command]:
    """Yield a task for every free slot if samples are left now. Do not use it after commands that return samples."""
    if view.work_left:
        for node in view.idle:
            yield from assign(view, node, samples, kind, deadline)


def shares_by_weight(updates: Mapping[UpdateId, int]) -> dict[UpdateId, float]:
    """Return shares that sum to 1, in proportion to each update's weight, or equal shares if all weights are 0."""
    total = sum(updates.values())
    return {update: weight / total if total else 1 / len(updates) for update, weight in updates.items()}
