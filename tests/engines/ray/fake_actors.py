"""The hub of a Ray run with fake actors and nodes. A test sends their replies, and no process is started."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import ray

from oddlot.core.events import Lost
from oddlot.engines.host import Message
from oddlot.engines.processes.node_ids import NodeIds
from oddlot.engines.processes.respawn import EVALUATOR_INDEX
from oddlot.engines.ray.actor_pool import BEAT_SECONDS, ActorPool
from oddlot.engines.ray.handles import ActorHandle, CallResult, OpenTask
from oddlot.engines.ray.node_watch import ActorNode, NodeWatch
from oddlot.engines.ray.settings import RaySettings
from oddlot.engines.ray.worker_actor import Started
from oddlot.engines.ray.worker_logs import WorkerLogs

HUB_NODE = "hub's node"
LOST_AFTER_SECONDS = 9.0


class Call(NamedTuple):
    """A call of an actor's method without effect."""

    method: str

    def options(self, **_: object) -> "Call":
        return self

    def remote(self, *_: object) -> "Call":
        return Call(self.method)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


@dataclass(eq=False)
class FakeActor:
    """An actor, and the nodes that it must avoid."""

    name: str
    avoid: set[str]

    def __getattr__(self, method: str) -> Call:
        return Call(method)


@dataclass
class FakePlacement:
    """A replacement of `StartedActors`."""

    settings: RaySettings
    hub_node: str = HUB_NODE

    def take(self, index: int, name: str, avoid: Collection[str] = ()) -> FakeActor:
        return FakeActor(name, set(avoid))


@dataclass
class World:
    """A hub with a clock that the test sets. The id of each node is its address."""

    workers: int = 2
    logs: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    """Further settings of the engine."""
    now: float = 0.0
    silent: set[str] = field(default_factory=set)
    """Nodes that do not respond."""
    cluster: list[str] = field(default_factory=lambda: [HUB_NODE, "far"])
    """Nodes with the resources of a worker."""
    homes: dict[str, str] = field(default_factory=dict)
    """Nodes of workers, by name."""
    outputs: dict[str, bytes] = field(default_factory=dict)
    """Output of workers on other machines, by name."""
    questions: list[tuple[Any, ...]] = field(default_factory=list)
    """Pending calls of nodes."""
    lost: list[Lost] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = RaySettings(self.workers, lost_after_seconds=LOST_AFTER_SECONDS, **self.settings)
        self.actors = ActorPool(
            FakePlacement(settings),  # type: ignore[arg-type]
            NodeIds([*settings.names, *settings.on_demand_names], ()),
            None,
            WorkerLogs(self.logs),
            lambda: self.now,
        )
        self.actors.nodes._call = lambda *call: self.questions.append(call)  # type: ignore[assignment]
        self.actors.nodes.find = self._find  # type: ignore[method-assign]

    @property
    def nodes(self) -> NodeWatch:
        return self.actors.nodes

    def start(self, name: str, node: str, *, tasks: int = 1) -> ActorHandle:
        """Let a worker become ready on a node, with `tasks` open tasks."""
        if name not in self.actors.running:
            index = EVALUATOR_INDEX if name == "evaluator" else self.actors.ids.names.index(name)
            self.actors.spawn(index)
        worker = self.actors.running[name]
        started = Started(1, node, node, f"machine of {node}", (name,))
        self.homes[name] = node
        self.answer(worker, self.actors._located, started)
        self.answer(worker, self.actors._ready, started)
        worker.tasks = {f"{name}:{number}": OpenTask(None, None) for number in range(tasks)}  # type: ignore[arg-type]
        return worker

    def _find(self, actor: FakeActor, then: Callable[[ActorNode], None]) -> None:
        home = self.homes[actor.name]
        then(ActorNode(home, home, {*self.cluster} - {home}))

    def answer(self, worker: ActorHandle, then: Callable[[ActorHandle, Any], None], answer: Any) -> None:
        """Pass the result of a call, or an error, from a worker to the hub."""
        self.actors.hear(CallResult(worker, None, lambda value: then(worker, value), answer))
        self._collect()

    def fail(self, worker: ActorHandle, error: BaseException) -> None:
        """Return an error for all calls of a worker, as Ray does."""
        for _ in range(2):
            self.answer(worker, lambda *_: None, error)

    def beat(self, *workers: ActorHandle) -> None:
        """Send a heartbeat from each of these workers."""
        for worker in workers:
            self.answer(worker, self.actors._beaten, "alive")

    def wait(self, seconds: float, *beating: ActorHandle) -> None:
        """Advance the clock, with heartbeats of these workers and replies of nodes that are not silent."""
        for _ in range(round(seconds / BEAT_SECONDS)):
            self.now += BEAT_SECONDS
            self.beat(*(worker for worker in beating if self.actors.is_running(worker)))
            self.reply()
            self.actors.check()
            self._collect()

    def reply(self) -> None:
        """Reply to the pending calls of nodes that are not silent."""
        questions, self.questions = self.questions, []
        for question in questions:
            node, then, function = question[:3]
            if node in self.silent:
                self.questions.append(question)
                continue
            is_log = function.__name__ == "end_of"
            then(self.outputs.get(question[3][0], b"") if is_log else True)
        self._collect()

    def _collect(self) -> None:
        messages: list[Message] = list(self.actors.messages)
        self.actors.messages.clear()
        self.lost += [message for message in messages if isinstance(message, Lost)]


@contextmanager
def world(**settings: Any) -> Iterator[World]:
    """Yield a hub with fake actors."""
    with (
        patch("oddlot.engines.ray.private_api.on_completed"),
        patch("oddlot.engines.ray.node_watch.DRAIN_SECONDS", 1e6),
        patch("oddlot.engines.ray.actor_pool.waiting_for", return_value=("", False)),
        patch("oddlot.engines.ray.actor_pool.KILL_SECONDS", 0.01),
        patch("ray.kill"),
    ):
        made = World(**settings)
        try:
            yield made
        finally:
            made.actors.close()


def died(how: str, why: str = "") -> ray.exceptions.ActorDiedError:
    """Return Ray's error about an actor after the death of its `node` or its `worker process`."""
    from ray.core.generated.common_pb2 import ActorDiedErrorContext

    return ray.exceptions.ActorDiedError(
        ActorDiedErrorContext(
            error_message=f"The actor died because its {how} has died. {why}", actor_id=bytes(16)
        )
    )
