"""What an algorithm sees and says."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Protocol

from oddlot.core.commands import Assign, Command
from oddlot.core.events import Event
from oddlot.core.ledger import Ledger
from oddlot.core.optimizers import Optimizer
from oddlot.core.serialization import saved_by_place
from oddlot.core.tasks import Facts, Kind, NodeId, Task, TaskId, UpdateId
from oddlot.core.worker_stats import Roster

STATE = MappingProxyType({"state": True})
"""metadata of a field that is no setting; one that is a dict or a list is none without it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What oddlot knows about a strategy before a run begins. The defaults hold for a strategy that says nothing."""

    server_optimizer: Optimizer | None = None
    """Optimizer at the hub; None: the job's."""
    epoch_barrier: bool = False
    """Whether an epoch waits for the one before."""
    whole_shards: bool = False
    """Whether a task is a whole shard of the data."""
    clients: int = 0
    """Shards of a round, where a task is a whole shard; 0: one for each worker."""
    waits_for_all: bool = False
    """Whether a round waits for every worker, and ends with a step along all updates."""
    hands_over: bool = False
    """Whether tasks may end before they are done."""
    varies_loads: bool = False
    """Whether it gives workers tasks of different sizes."""
    reads_gradients: bool = False
    """Whether it adapts to what `Changed` says about gradients."""
    measured_loads: tuple[int, ...] = ()
    """Samples of the tasks for which it asks what rounds take (`Fitted`)."""
    local_steps: bool = False
    """Whether workers take local steps of one minibatch each."""
    task_samples: int | None = None
    """Samples of the largest task; None: not known before a run."""
    task_setting: str = ""
    """Setting that decides about `task_samples`, such as `samples`."""
    updates: int | None = None
    """Updates of one step, at first; None: one from each worker."""
    quorum: float = 1.0
    """Share of these that a step waits for."""
    step_samples: int | None = None
    """Samples of one step at least, where that is not `updates` times `task_samples`."""


@saved_by_place
class Strategy(ABC):
    """Decides what to do about an event. No clock, no I/O, no tensors, no globals.

    A strategy is a dataclass of settings and small state made of dicts, lists, text and numbers, so that it can be
    copied, compared and saved. `on` is all that it needs; override `traits` and `validate` if the defaults don't fit.
    """

    @abstractmethod
    def on(self, event: Event, view: "View") -> Iterable[Command]:
        """Return the commands that answer an event. All are collected before any is carried out."""

    def traits(self, batch_size: int) -> Traits:
        """Return what must be known before a run, for a job whose minibatches have `batch_size` samples."""
        return Traits()

    def validate(self, workers: int, metrics: Collection[str]) -> None:  # noqa: B027 - most strategies run anywhere
        """Raise UsageError if the strategy cannot run with so many workers, or needs a metric that is not evaluated."""


class Books(Protocol):
    """What a `View` shows of the conductor's books."""

    now: float
    version: int
    ledger: Ledger
    batch: int
    slots: dict[NodeId, int]
    idle: dict[NodeId, None]
    stalled: dict[NodeId, None]
    busy: dict[NodeId, dict[TaskId, float]]
    open: dict[TaskId, Task]
    kept: dict[str, int]
    rng: Random
    roster: Roster

    def expects(self, task: TaskId) -> bool:
        """Whether an answer to this task would count."""


@dataclass(frozen=True, slots=True)
class View:
    """A read-only picture of this moment, valid while `on` runs."""

    _books: Books

    @property
    def now(self) -> float:
        """Seconds on the run's clock."""
        return self._books.now

    @property
    def version(self) -> int:
        """How many merges the model has seen."""
        return self._books.version

    @property
    def epoch(self) -> int:
        """The oldest epoch that is not wholly merged."""
        return self._books.ledger.epoch

    @property
    def batch(self) -> int:
        """The job's batch size in samples."""
        return self._books.batch

    @property
    def shard_samples(self) -> int:
        """The samples of the largest shard of the data: all of them, where it is not cut."""
        return self._books.ledger.shard_samples

    @property
    def shards_left(self) -> int:
        """Of how many shards a lease asked for now would bring samples."""
        return self._books.ledger.shards_left

    @property
    def work_left(self) -> bool:
        """A lease asked for now would bring samples."""
        return self._books.ledger.work_left

    @property
    def nodes(self) -> Collection[NodeId]:
        """The workers that may be given work, in order of arrival."""
        return self._books.slots.keys()

    @property
    def idle(self) -> Collection[NodeId]:
        """Those of them that have a free slot."""
        return self._books.idle.keys()

    @property
    def stalled(self) -> Collection[NodeId]:
        """Those of them that hold nothing but tasks that were cancelled or timed out: they have not answered that."""
        return self._books.stalled.keys()

    def has_no_task(self, node: NodeId) -> bool:
        """The worker can be given work, and holds no task, not even one that was cancelled or timed out."""
        return node in self._books.slots and not self._books.busy[node]

    @property
    def tasks(self) -> Mapping[TaskId, Task]:
        """The open tasks: started, and neither answered, cancelled nor timed out."""
        return MappingProxyType(self._books.open)

    @property
    def rng(self) -> Random:
        """The strategy's own source of chance."""
        return self._books.rng

    @property
    def roster(self) -> Roster:
        """How fast and how reliable each worker has been."""
        return self._books.roster

    def since(self, task: TaskId) -> float:
        """When the open task was given out, in seconds on the run's clock."""
        return self._books.busy[self.tasks[task].node][task]

    def is_needed(self, task: TaskId) -> bool:
        """An answer to the open task would be of use: its samples have not been skipped since."""
        return self._books.expects(task)

    def can_start_from(self, version: int) -> bool:
        """It is the newest, or kept."""
        return version == self.version or str(version) in self._books.kept

    def free(self, node: NodeId) -> int:
        """How many more tasks the worker can be given now; 0 for one that is not there."""
        return self._books.slots.get(node, 0)

    def staleness(self, update: Facts) -> int:
        """How many versions were made since the update's task started."""
        return self._books.version - update.based_on


@dataclass(frozen=True, slots=True)
class Narrowed(View):
    """What a strategy inside another one is shown of it: who else is idle and what else is open is kept from it, and
    nobody has room for more than one task."""

    shown_idle: Mapping[NodeId, None]
    shown_tasks: Mapping[TaskId, Task]

    @property
    def idle(self) -> Collection[NodeId]:
        """Those of the shown ones, each with one free slot."""
        return self.shown_idle.keys()

    @property
    def tasks(self) -> Mapping[TaskId, Task]:
        """Those that are shown as open."""
        return self.shown_tasks

    def free(self, node: NodeId) -> int:
        """One, where the worker is shown as idle."""
        return int(node in self.shown_idle)

    def since(self, task: TaskId) -> float:
        """When it was given out; now, where it has been answered and is shown as open."""
        return self._books.busy.get(self.tasks[task].node, {}).get(task, self.now)

    @classmethod
    def of(cls, view: View, idle: Mapping[NodeId, None], tasks: Mapping[TaskId, Task]) -> "Narrowed":
        """The same moment."""
        return cls(view._books, idle, tasks)


def assign(
    view: View, node: NodeId, samples: int, kind: Kind = "gradient", deadline: float | None = None
) -> Iterator[Command]:
    """A task of `samples` samples for every free slot of the worker."""
    for _ in range(view.free(node)):
        yield Assign(node, samples, kind, deadline=deadline)


def assign_all(
    view: View, samples: int, kind: Kind = "gradient", deadline: float | None = None
) -> Iterator[Command]:
    """A task for every free slot of every worker."""
    for node in view.idle:
        yield from assign(view, node, samples, kind, deadline)


def assign_idle(
    view: View, samples: int, kind: Kind = "gradient", deadline: float | None = None
) -> Iterator[Command]:
    """The same, if there is work now: not behind a command that returns samples or closes an epoch."""
    if view.work_left:
        yield from assign_all(view, samples, kind, deadline)


def shares_by_samples(updates: Mapping[UpdateId, int]) -> dict[UpdateId, float]:
    """Shares that sum to 1, in proportion to each update's samples: unequal batches are right by construction."""
    total = sum(updates.values())
    return {update: samples / total for update, samples in updates.items()}
