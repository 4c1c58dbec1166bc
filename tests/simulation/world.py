"""`World`: a complete run with random machines, messages and faults of hub and workers, drawn from one seed."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any

from oddlot import (
    SGD,
    VCASGD,
    AdaptiveK,
    AdaptiveLoad,
    Asynchronous,
    BackupTasks,
    Deadline,
    Downpour,
    ElasticAveraging,
    FastestK,
    FederatedAveraging,
    Groups,
    LocalSGD,
    ProportionalLoad,
    Quorum,
    Strategy,
    Synchronous,
)
from oddlot.core.commands import DriftOf
from oddlot.core.conductor import Conductor
from oddlot.core.events import FaultInjected, Joined, Ordered, Resumed
from oddlot.core.records import Record
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.support.errors import Rejection
from oddlot.core.tasks import Facts, NodeId, Task, TaskLoss, UpdateId
from oddlot.engines.base import Opened
from oddlot.engines.host import Host, Message, ReceivedUpdate
from oddlot.engines.loop import drive
from oddlot.engines.simulated.engine import SimulatedHub
from oddlot.engines.simulated.update_servers import UpdateServers
from oddlot.faults import Chaos, Fault
from oddlot.faults.injector import CONTINUED, FaultInjector
from oddlot.history.audit import prove
from oddlot.history.log import given_out, numbered, surviving
from oddlot.history.metrics import Tally, tally_of
from oddlot.history.replay import compare
from oddlot.machines.capacity import Alive, Capacity, Memoryless, Pools
from oddlot.machines.delay_models import Delay, Deterministic, Exponential, Lognormal
from oddlot.machines.machine import Lifetime, Link, Machine
from oddlot.machines.market import Hub, Offer, Zone
from oddlot.machines.time_series import Steps
from oddlot.model.merging import MergeNorms
from oddlot.run.training import engine_with_faults, host_of
from oddlot.strategies import ByError, ByGradients, ByPlateau
from oddlot.testing.state_checks import StateChecks
from tests.toys import Backups, Timed

FAULTS = ("kill", "freeze", "slow", "leave", "delay", "drop", "corrupt")
MISHAPS = frozenset(f"fault {kind}" for kind in FAULTS) | {
    *("goes on", "nobody here", "twice", "later", "lie", "corrupt", "stray", "echo"),
    *("Priced", "Resumed", "Lost", "Leaving", "UpdateRejected", "Cancelled", "Ticked", "Evaluated"),
}
"""All mishaps: faults, remarks, tampered messages and events."""
MAX_STEPS = 20_000
"""Maximum number of messages and alarms. A longer run counts as stalled."""
BATCH = 4

ROUNDS = (1, 2, 0.1), (2, 4, 0.3), (3, 9, 1.0)
NESTEROV = SGD(0.7, 0.9, nesterov=True)


def chosen(*makers: Callable[[Random], Strategy]) -> Callable[[Random], Strategy]:
    """Return a maker that picks one of these makers at random."""
    return lambda chance: chance.choice(makers)(chance)


def switch(chance: Random) -> ByGradients | ByPlateau:
    """Return a random rule for the increase of k or the load."""
    by_gradients = ByGradients(chance.choice([1, 2]), chance.choice([0, 1]), chance.choice([0, 2]))
    return by_gradients if chance.random() < 0.7 else ByPlateau(patience=1)


STRATEGIES: dict[str, Callable[[Random], Strategy]] = {
    "synchronous": lambda chance: Synchronous(chance.choice([None, 2, 9])),
    "fastest_k": lambda chance: FastestK(chance.randint(1, 4), chance.choice([None, 2, 9])),
    "asynchronous": lambda chance: Asynchronous(
        chance.choice([None, 2, 9]), chance.choice([0.0, 0.5, 1.0]), chance.choice([None, 0, 1, 3])
    ),
    "local_sgd": lambda chance: LocalSGD(chance.randint(1, 4), chance.choice([SGD(1.0), NESTEROV])),
    "vc_asgd": lambda chance: VCASGD(
        newest=chance.random() < 0.5,
        damping=chance.choice([0.0, 1.0]),
        deadline_seconds=chance.choice([None, 0.5]),
    ),
    "federated_averaging": lambda chance: FederatedAveraging(
        clients := chance.choice([None, 1, 3]), 0.5 if clients == 1 else None
    ),
    "elastic_averaging": lambda chance: ElasticAveraging(chance.randint(1, 4), chance.choice([None, 0.5])),
    "downpour": lambda chance: Downpour(chance.randint(1, 4)),
    "adaptive_k": chosen(
        lambda chance: AdaptiveK(chance.randint(1, 2), chance.choice([1, 2]), switch=switch(chance)),
        lambda chance: AdaptiveK(times=((0.5, 2), (2.0, 3)), samples=3),
    ),
    "adaptive_load": chosen(
        lambda chance: AdaptiveLoad(ROUNDS, switch(chance), least=1),
        lambda chance: AdaptiveLoad(switch=switch(chance), measuring=0.3),
        lambda chance: AdaptiveLoad(ROUNDS, ByError(0.5), least=3),
    ),
    "quorum": lambda chance: Quorum(
        chosen(
            lambda chance: LocalSGD(chance.randint(1, 3), NESTEROV),
            lambda _: ProportionalLoad(Synchronous(6)),
            lambda _: Deadline(LocalSGD(steps=3), 0.5),
        )(chance),
        chance.choice([0.1, 0.3, 1.0]),
        chance.choice([0.0, 0.5]),
    ),
    "groups": lambda chance: Groups(
        chosen(
            lambda chance: Synchronous(chance.choice([None, 9])),
            lambda _: FastestK(1, 3),
            lambda _: Quorum(LocalSGD(steps=2), 0.5, 0.5),
            lambda _: Deadline(LocalSGD(steps=3), 0.5),
            lambda _: BackupTasks(ProportionalLoad(Synchronous(9)), 1.0),
            lambda chance: AdaptiveK(1, 1, switch=switch(chance)),
        )(chance),
        chance.randint(1, 3),
        chance.choice([0.0, 1.0]),
    ),
    "backup_tasks": lambda chance: BackupTasks(
        chosen(
            lambda _: Synchronous(9),
            lambda _: VCASGD(newest=False),
            lambda _: Asynchronous(),
            lambda _: ElasticAveraging(steps=1),
            lambda _: Deadline(ProportionalLoad(Quorum(LocalSGD(steps=2))), 0.3),
        )(chance),
        chance.choice([1.0, 2.0]),
    ),
    "deadline": lambda chance: Deadline(
        chosen(lambda _: Synchronous(9), lambda _: FastestK(2, 9), lambda _: LocalSGD(steps=3))(chance),
        chance.choice([0.05, 0.5]),
    ),
    "proportional_load": lambda chance: ProportionalLoad(
        chosen(lambda chance: Synchronous(chance.choice([2, 9])), lambda _: BackupTasks(Asynchronous()))(
            chance
        )
    ),
    "backups": lambda chance: Backups(chance.choice([2, 4, 9])),
    "timed": lambda chance: Timed(chance.choice([0.05, 0.3]), chance.choice([2, 4, 9])),
}
"""Makers of random strategies: all included hub strategies, and two from `tests.toys`."""


class Parcel:
    """A payload of an update that must be released exactly once."""

    def __init__(self, alive: "set[Parcel]") -> None:
        self.alive, self.bad = alive, False
        alive.add(self)

    def release(self) -> None:
        """Release the payload."""
        self.alive.remove(self)  # KeyError if released twice

    def corrupt(self) -> None:
        """Mark the payload as invalid."""
        self.bad = True


class Shelf:
    """A store and a computation without a model. Both check versions and payloads strictly."""

    bytes_down = bytes_up = 1000

    def __init__(self, conductor: Conductor) -> None:
        self.version = conductor.version
        self.holds: Counter[int] = Counter({int(version): holds for version, holds in conductor.kept.items()})
        self.alive: set[Parcel] = set()
        self.inbox = {update: Parcel(self.alive) for update in conductor.inbox}
        self.merged: set[UpdateId] = set()
        self.gone: set[NodeId] = set()

    def compute(self, task: Task, weights: int) -> tuple[TaskLoss, Parcel]:
        """Check that the weights are the task's version, and return a payload."""
        assert weights == task.version
        assert task.node not in self.gone
        return TaskLoss(1.0), Parcel(self.alive)

    def forget(self, node: NodeId) -> None:
        """Check that each worker is forgotten only once."""
        assert node not in self.gone
        self.gone.add(node)

    def evaluate(self, weights: int) -> dict[str, float]:
        """Return the version as loss."""
        assert self.holds[weights] > 0
        return {"loss": float(weights)}

    def acquire(self, version: int) -> int:
        """Hold a version. Only the current version and held versions exist."""
        assert version == self.version or self.holds[version] > 0, f"version {version} is gone"
        self.holds[version] += 1
        return version

    def release(self, version: int) -> None:
        """Release a version, once for each time it was acquired."""
        assert self.holds[version] > 0, f"version {version} is released too often"
        self.holds[version] -= 1

    acquire_evaluated, release_evaluated = acquire, release

    def receive(self, facts: Facts, payload: Parcel) -> None:
        """Put an update into the inbox, once. Raise `Rejection` if its payload is corrupt."""
        if payload.bad:
            raise Rejection("its numbers are bad")
        assert facts.id not in self.inbox
        assert facts.id not in self.merged
        self.inbox[facts.id] = payload

    def step(
        self,
        shares: Mapping[UpdateId, float],
        measure: int = 0,
        merged: int | None = None,
        drift: DriftOf | None = None,
        chunks: Sequence[int] | None = None,
    ) -> MergeNorms | None:
        """Merge updates from the inbox, each once. Two of three measured steps have a negative inner product."""
        for update in shares:
            self.inbox.pop(update).release()
            self.merged.add(update)
        self.version += 1
        return MergeNorms(1.0, -1.0 if self.version % 3 else 1.0) if measure else None

    blend = step

    def drop(self, update: UpdateId) -> None:
        """Remove an update from the inbox."""
        self.inbox.pop(update).release()


class Post:
    """An engine with updates that arrive twice, late, out of order, with false facts or with bad numbers."""

    def __init__(self, engine: Any, chance: Random, rate: float, shelf: Shelf) -> None:
        self.engine, self.chance, self.rate, self.shelf = engine, chance, rate, shelf
        self.late: list[tuple[float, int, Message]] = []
        self.count = 0
        self.done: set[str] = set()
        """Kinds of changes that were made to updates."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def next(self, until: float) -> Message | None:
        """Return the next message. It may be changed or delayed."""
        while True:
            due = self.late[0][0] if self.late else inf
            if due <= self.engine.now:
                return heappop(self.late)[2]
            message = self.engine.next(min(until, due))
            if message is None and due > self.engine.now:
                return None
            if message is not None and (message := self._tamper(message)) is not None:
                return message

    def _tamper(self, message: Message) -> Message | None:
        if self.chance.random() >= self.rate or not isinstance(message, ReceivedUpdate):
            return message
        mischief = self.chance.choice(["twice", "later", "lie", "corrupt", "stray"])
        self.done.add(mischief)
        match mischief:
            case "twice":
                self._later(ReceivedUpdate(message.facts, Parcel(self.shelf.alive)))
            case "later":
                self._later(message)
                return None
            case "lie":
                return ReceivedUpdate(replace(message.facts, **self.chance.choice(LIES)), message.payload)
            case "corrupt":
                if message.payload is not None:
                    message.payload.corrupt()
            case "stray":
                self._later(ReceivedUpdate(replace(message.facts, id="nobody:7"), Parcel(self.shelf.alive)))
        return message

    def _later(self, message: Message) -> None:
        self.count += 1
        seconds = self.chance.choice([0.0, 0.01, 0.5, 5.0])
        heappush(self.late, (self.engine.now + seconds, self.count, message))


LIES: list[dict[str, Any]] = [
    {"samples": 0},
    {"samples": 10**9},
    {"samples": -3},
    {"sender": "somebody"},
    {"based_on": 10**6},
    {"kind": "point"},
]


@dataclass
class World:
    """A run of one seed. `run` executes it and checks its results."""

    name: str
    seed: int
    log: list[Record] = field(default_factory=list)
    """Log as in a file, including records that a resume discarded."""
    state: StateChecks = field(default_factory=StateChecks)
    tally: Tally = field(default_factory=Tally)
    steps: int = 0
    mishaps: set[str] = field(default_factory=set)
    """Mishaps that are not in the log."""

    def __post_init__(self) -> None:
        self.chance = chance = Random(f"{self.name} {self.seed}")
        self.size, self.epochs = chance.randint(1, 60), chance.randint(1, 3)
        self.shards = chance.choice([1, 1, 2, 3])
        ledger = SampleLedger(
            self.size, self.epochs, min(self.shards, self.size), chance.random() < 0.3, True
        )
        self.strategy = STRATEGIES[self.name](chance)
        self.conductor = Conductor(self.strategy, ledger, BATCH, chance.randint(1, 3), self.seed)
        self.begin = json.dumps(self.conductor.to_plain())
        self.machines: list[Machine | Zone] = [self._machine(f"m{i}") for i in range(chance.randint(1, 5))]
        self.hub = Hub()
        if chance.random() < 0.3:
            self.machines.append(self._zone())
        if chance.random() < 0.3:
            self.hub = Hub(0.36, chance.choice([0.01, 0.1]), chance.randint(1, 3), chance.random() < 0.5)
        self.chaos = Chaos([self._fault() for _ in range(chance.randint(0, 4))], self.seed)
        self.mischief = chance.choice([0.0, 0.1, 0.3])
        self.every = chance.choice([1, 5, 20])
        """Number of records between checkpoints."""
        self.losses = [chance.randint(3, 60) for _ in range(chance.choice([0, 1, 1, 2]))]
        """Losses of the hub, each as a number of records after its start."""

    def run(self) -> list[Record]:
        """Run to the end, check the results, and return the complete log."""
        saved = self.begin, 0
        for life in [*self.losses, None]:
            saved = self._live(*saved, life)
            if self.conductor.done:
                break
        assert self.conductor.done, "it did not come to its end"
        held = surviving(self.log)
        proof = prove(held, self.size, self.epochs)
        assert not proof.faults, proof
        assert proof.whole == self.epochs, proof
        assert self.tally.epochs == self.epochs
        assert self.tally.samples.merged == proof.merged
        assert self.tally.samples.assigned == given_out(held) == self._accounted_for()
        assert self.tally.samples.skipped == proof.skipped == self.conductor.ledger.skipped
        assert tally_of(self.log, self.size).summary() == self.tally.summary(), (
            "figures are functions of the log"
        )
        again = compare(Conductor.from_plain(json.loads(self.begin), type(self.strategy)), numbered(self.log))
        assert not again.difference, again.difference
        return self.log

    @property
    def seen(self) -> set[str]:
        """Return the events, remarks, faults and mishaps of the run."""
        seen = set(self.mishaps)
        for record in self.log:
            seen |= {type(record.event).__name__, record.remark}
            if isinstance(record.event, FaultInjected):
                seen |= {f"fault {record.event.kind}", "goes on" if CONTINUED in record.event.fault else ""}
        return seen

    def _accounted_for(self) -> int:
        """Return the number of assigned samples, as the sum over their outcomes."""
        tally = self.tally
        open_tasks = [*tally.timeline.under_way.values(), *tally.timeline.inbox.values()]
        ended = (
            tally.samples.merged
            + tally.samples.wasted.total()
            + tally.samples.skipped
            + tally.samples.returned
        )
        return ended + sum(task.samples for task in open_tasks)

    def _live(self, checkpoint: str, records: int, most: int | None) -> tuple[str, int]:
        """Run the hub from a checkpoint until its loss or the end. Return its last checkpoint."""
        self.conductor = conductor = Conductor.from_plain(json.loads(checkpoint), type(self.strategy))
        taken = frozenset(r.event.node for r in self.log if isinstance(r.event, Joined | Ordered))
        now = self.log[-1].now if self.log else 0.0
        shelf = Shelf(conductor)
        engine = SimulatedHub(self.machines, shelf, BATCH, self.seed, now, taken, self.hub)
        opened = Opened(engine, None, self.hub, engine)  # type: ignore[arg-type]  # there are no blocks
        left = [node for node, row in tally_of(self.log, self.size).workers.items() if not row.gone]
        injector = engine_with_faults(opened, shelf, conductor, self.chaos, (), self.log or None, left)
        assert isinstance(injector, FaultInjector)
        self.served = injector.engine
        post = Post(injector, self.chance, self.mischief, shelf)
        host = host_of(conductor, shelf, post)
        saved, born = (checkpoint, records), len(self.log)

        def watch(record: Record) -> None:
            nonlocal saved
            assert not self.log or record.now >= self.log[-1].now, "the clock runs backwards"
            self.log.append(record)
            self.state.note(record, conductor)
            self.tally(record)
            self._check(host, shelf)
            due = most is not None and len(self.log) + self.every > born + most
            if due and len(self.log) % self.every == 0:  # earlier checkpoints are never read
                saved = json.dumps(conductor.to_plain()), len(self.log)

        host.observers.append(watch)
        self.state, self.tally = StateChecks(), Tally(self.size)
        if self.log:
            for record in surviving(self.log, records):
                self.state.note(record, conductor)
                self.tally(record)
            host.handle(Resumed(records), now)
        drive(host, post, lambda: self._ended(host, born, most))
        self.mishaps |= post.done
        if conductor.done:
            self._check_end(host, shelf, post, engine)
        return saved

    def _ended(self, host: Host, born: int, most: int | None) -> str:
        self.steps += 1
        assert self.steps < MAX_STEPS, "it has stalled"
        if self.chance.random() < 0.01:
            host.evaluate(host.conductor.version)
        if host.conductor.done:
            return "done"
        return "lost" if most is not None and len(self.log) - born >= most else ""

    def _check(self, host: Host, shelf: Shelf) -> None:
        conductor = host.conductor
        out = {task for tasks in conductor.busy.values() for task in tasks}
        assert host.holds.keys() <= out, "a version is held for a task that nobody has"
        stalled = {
            node
            for node in conductor.slots
            if conductor.busy[node] and conductor.open.keys().isdisjoint(conductor.busy[node])
        }
        assert stalled == conductor.stalled.keys()
        if not conductor.busy and conductor.version:
            self.mishaps.add("nobody here")
        if len(self.log) % 7 == 0 or conductor.done:
            faults = list(self.state.faults(conductor))
            assert not faults, [str(fault) for fault in faults[:3]]

    def _check_end(self, host: Host, shelf: Shelf, post: Post, engine: SimulatedHub) -> None:
        """Check that only the strategy's versions are held after all tasks have ended."""
        conductor = host.conductor
        for node, tasks in conductor.busy.items():
            if tasks:
                engine.kill(node)
        hub = self.served if isinstance(self.served, UpdateServers) else None
        while any(conductor.busy.values()) or host.evaluating or shelf.alive or (hub and hub.in_service):
            self.steps += 1
            assert self.steps < MAX_STEPS, f"{len(shelf.alive)} updates are held for ever"
            message = post.next(host.alarm)
            if message is not None:
                host.receive(message, post.now)
            else:
                host.ring(post.now)
        assert not shelf.inbox
        assert not host.holds
        assert shelf.holds.total() == sum(conductor.kept.values()) + (len(hub.read) if hub else 0)

    def _machine(self, name: str) -> Machine:
        chance = self.chance
        delays: list[Delay] = [Deterministic(), Exponential(), Lognormal(1.0)]
        link = Link(chance.choice([inf, 1.0]), chance.choice([0.0, 5.0]))
        lifetime = Lifetime(chance.choice([1.0, 5.0, 1e9]))
        return Machine(
            name,
            chance.choice([0.001, 0.01, 0.05]),
            chance.choice(delays),
            link,
            1.0,
            lifetime,
            chance.choice([0.0, 0.2, 2.0]),
            0.0,
            chance.choice([0.0, 0.0, 0.1]),
            chance.choice([0.0, 0.0, 0.05]),
            chance.choice([0.0, 0.0, 0.5]),
        )

    def _zone(self) -> Zone:
        """Return a zone with changing capacity and prices."""
        chance = self.chance
        capacities: list[Capacity] = [
            Memoryless(1.0, 0.3),
            Pools(2, 1.0, 0.7, 0.5),
            Alive(Steps((0.0, 0.4, 0.9), (3.0, 0.0, 2.0), 1.5)),
        ]
        prices = Steps((0.0, 0.7), (1.0, 2.0), 1.3)
        offer = Offer(
            "any", 9.0, prices, chance.choice([1.0, 3.0]), seconds_to_start=chance.choice([0.0, 0.1])
        )
        one = replace(self._machine("one"), lifetime=None)
        return Zone("z", offer, chance.randint(1, 4), one, chance.choice(capacities))

    def _fault(self) -> Fault:
        chance = self.chance
        kind = chance.choice(FAULTS)
        once: list[dict[str, Any]] = [
            {"at_seconds": [chance.uniform(0, 2) for _ in range(3)]},
            {"at_versions": [chance.randint(0, 10)]},
        ]
        again: list[dict[str, Any]] = [
            {"every_seconds": chance.choice([0.5, 2.0])},
            {"per_hour": 3600 * chance.choice([0.5, 2.0])},
        ]
        # Endless faults may keep one machine from completing a task, but not all machines.
        when = chance.choice(once if len(self.machines) == 1 else once + again)
        whom = chance.choice(["", "m0"]) if when in once else "m0"
        hows: dict[str, dict[str, Any]] = {
            "freeze": {"for_seconds": chance.choice([0.05, 80.0, 80.0])},
            "slow": {"factor": chance.choice([0.5, 5.0]), "for_seconds": chance.choice([None, 1.0])},
            "delay": {"delay_seconds": chance.choice([0.0, 0.1, 80.0])},
        }
        return Fault(kind, whom, **when, **hows.get(kind, {}))


def trace_of(log: Iterable[Record]) -> str:
    """Return the trace, with one line for each record."""
    return "\n".join(f"{r.now:.6f} {r.event} -> {', '.join(map(str, r.actions))} {r.remark}" for r in log)
