"""`check_engine`: a test suite of failure scenarios for engines.

    def test_my_engine() -> None:
        check_engine(lambda workers: MyEngine(workers))

`MyEngine` is an engine config for `fit`. See `oddlot.engines.base.EngineConfig`.

Killed workers must be replaced under a new name, as with `Local(respawn=True)`, `Ray(respawn=True)` or machines with
`seconds_to_return`. If the engine has a mesh, scenarios with `Gossip` run too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import sleep

import torch

from oddlot.core.commands import Assign, Cancel, Command, HandOver, Request, Start, Wake
from oddlot.core.events import (
    AlarmFired,
    Arrived,
    Cancelled,
    Event,
    Joined,
    Leaving,
    Lost,
    ModelReceived,
    PeerLost,
)
from oddlot.core.records import ECHO, Record
from oddlot.core.strategy import Strategy, View
from oddlot.core.tasks import NodeId, TaskId
from oddlot.engines.base import EngineConfig
from oddlot.engines.host import Message, ReceivedUpdate
from oddlot.faults import Chaos, Fault
from oddlot.run.config import RunConfig
from oddlot.run.mesh import prepared_mesh
from oddlot.run.recipe import Recipe
from oddlot.run.result import Run
from oddlot.run.training import Training, prepared
from oddlot.strategies import Asynchronous, Deadline, Gossip, Synchronous
from oddlot.testing.state_checks import StateChecks
from oddlot.train.job import Job

SAMPLES, EPOCHS, BATCH = 64, 2, 8
STEP_SECONDS = 0.1
"""Seconds per minibatch in scenarios with a message that must arrive before the end of the minibatch."""


class DrivenRun:
    """A run that is advanced one message at a time. The sample accounting is checked after each message."""

    def __init__(self, training: Training) -> None:
        self.host, self.engine = training.host, training.opened.engine
        assert training.opened.faults is not None, "the suite needs fault injection"
        self.faults = training.opened.faults
        self.records: list[Record] = []
        self._checks = StateChecks()
        self.host.observers.append(self._note)

    def next(self) -> Message | None:
        """Wait for the next message, and return it. If the alarm is due first, fire it and return None."""
        message = self.engine.next(self.host.alarm)
        if message is None:
            self.host.ring(self.engine.now)
        return message

    def deliver(self, message: Message | None) -> None:
        """Pass a message to the host. None is ignored."""
        if message is not None:
            self.host.receive(message, self.engine.now)

    def joined(self) -> NodeId:
        """Wait for a worker to join, and return its name. Call `deliver` with its `Joined` to notify the host."""
        while not isinstance(message := self.next(), Joined):
            self.deliver(message)
        return message.node

    def until(self, fact: Callable[[], bool]) -> None:
        """Deliver messages until `fact()` is true."""
        while not fact():
            self.deliver(self.next())

    def finish(self) -> None:
        """Deliver messages until every sample of every epoch is merged, and check that the inbox is empty."""
        self.until(lambda: self.host.conductor.done)
        assert not self.host.conductor.inbox, "updates are left in the inbox"

    def has(self, event: type, node: str) -> bool:
        """Return whether the log has an event of this type and worker."""
        return any(isinstance(r.event, event) and getattr(r.event, "node", "") == node for r in self.records)

    def answered(self, task: TaskId) -> bool:
        """Return whether this task has returned an update or was cancelled."""
        events = (r.event for r in self.records)
        return any(
            (isinstance(e, Arrived) and e.update.id == task) or (isinstance(e, Cancelled) and e.task == task)
            for e in events
        )

    def answers(self, node: str, echo: bool) -> int:
        """Return the number of updates of this worker that arrived late (`echo`) or in time."""
        events = ((r.event, r.remark == ECHO) for r in self.records)
        return sum(isinstance(e, Arrived) and e.update.sender == node and late is echo for e, late in events)

    def _note(self, record: Record) -> None:
        self.records.append(record)
        self._checks.note(record, self.host.conductor)
        faults = list(self._checks.faults(self.host.conductor))
        assert not faults, f"after {record.event}: {'; '.join(map(str, faults))}"


@dataclass
class Impatient(Strategy):
    """Gives every task of the inner strategy a short timeout."""

    inner: Asynchronous = field(default_factory=Asynchronous)
    seconds: float = 0.3

    def on(self, event: Event, view: View) -> Iterator[Command]:
        """Yield the inner strategy's commands."""
        for command in self.inner.on(event, view):
            yield replace(command, deadline=self.seconds) if isinstance(command, Assign) else command


@dataclass
class Quitter(Strategy):
    """Cancels its first task, a complete epoch, when its alarm fires."""

    inner: Asynchronous = field(default_factory=lambda: Asynchronous(samples=SAMPLES))
    seconds: float = 0.1

    def on(self, event: Event, view: View) -> Iterator[Command]:
        """Yield the inner strategy's commands, except for the alarm."""
        if isinstance(event, Joined):
            yield Wake(view.now + self.seconds)
        if isinstance(event, AlarmFired):
            yield from (Cancel(task) for task in view.tasks)
        else:
            yield from self.inner.on(event, view)


@dataclass
class Sleeper(Strategy):
    """Assigns tasks only after its alarm has fired."""

    inner: Asynchronous = field(default_factory=Asynchronous)
    seconds: float = 0.2
    due: float = 0.0
    rang: float = 0.0

    def on(self, event: Event, view: View) -> Iterator[Command]:
        """Set the alarm at the first event. Yield the inner strategy's commands once it has fired."""
        if not self.due:
            self.due = view.now + self.seconds
            yield Wake(self.due)
        elif isinstance(event, AlarmFired):
            self.rang = view.now
        if self.rang:
            yield from self.inner.on(event, view)


@dataclass
class Slowly:
    """A training step that sleeps first, to let messages arrive before its end."""

    seconds: float

    def __call__(self, model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Sleep, and return the loss of a minibatch."""
        sleep(self.seconds)
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def small_job(step_seconds: float = 0.0) -> Job:
    """Return a job of a few samples."""
    rows = torch.arange(SAMPLES, dtype=torch.float32).reshape(-1, 1) / SAMPLES
    return Job(
        lambda: torch.nn.Linear(1, 1),
        (rows, 2 * rows),
        training_step=Slowly(step_seconds),
        batch_size=BATCH,
        device="cpu",
    )


@contextmanager
def trial(place: EngineConfig, strategy: Strategy, step_seconds: float = 0.0) -> Iterator[DrivenRun]:
    """Yield a run of a small job on this engine."""
    recipe = Recipe(small_job(step_seconds), strategy, place, RunConfig(until=f"epochs>={EPOCHS}"))
    with prepared(recipe) as training:
        yield DrivenRun(training)


def a_worker_dies_while_computing(make: Callable[[int], EngineConfig]) -> None:
    """The samples of a killed worker are assigned to other workers, and the run does not wait for it."""
    with trial(make(2), Synchronous()) as run:
        node = run.joined()
        run.faults.freeze(node)  # before it can send an update
        run.deliver(Joined(node))
        assert run.host.conductor.busy[node], "a worker that joins gets a task"
        run.faults.kill(node)
        run.until(lambda: run.has(Lost, node))
        run.finish()
        assert not run.answers(node, echo=False)


def a_worker_dies_after_sending(make: Callable[[int], EngineConfig]) -> None:
    """The update that a killed worker has sent counts once. Other workers compute its later tasks."""
    with trial(make(2), Asynchronous()) as run:
        while not isinstance(message := run.next(), ReceivedUpdate):
            run.deliver(message)
        node = message.facts.sender
        run.faults.kill(node)
        run.deliver(message)
        assert run.answers(node, echo=False) == 1
        run.until(lambda: run.has(Lost, node))
        run.finish()


def a_worker_joins_in_mid_round(make: Callable[[int], EngineConfig]) -> None:
    """The replacement of a lost worker has a new name and sends updates."""
    with trial(make(2), Asynchronous()) as run:
        node = run.joined()
        run.faults.kill(node)
        run.deliver(Joined(node))
        run.until(lambda: run.has(Joined, f"{node}.2"))
        run.until(lambda: run.answers(f"{node}.2", echo=False) > 0 or run.host.conductor.done)
        run.finish()
        assert node not in run.host.conductor.slots


def a_worker_answers_late(make: Callable[[int], EngineConfig]) -> None:
    """The task of a frozen worker times out. Other workers compute its samples, and its late update is ignored."""
    with trial(make(2), Impatient()) as run:
        node = run.joined()
        run.faults.freeze(node)
        run.deliver(Joined(node))
        run.until(lambda: run.host.conductor.worker_stats.members[node].timeouts > 0)
        assert not any(task.node == node for task in run.host.conductor.open.values())
        run.faults.thaw(node)
        run.until(lambda: run.answers(node, echo=True) > 0)
        run.finish()


def a_worker_is_told_to_stop(make: Callable[[int], EngineConfig]) -> None:
    """A worker with a cancelled task stops before its next minibatch, confirms that, and gets another task."""
    with trial(make(1), Quitter(), STEP_SECONDS) as run:
        node = run.joined()
        run.faults.freeze(node)  # before its last minibatch
        run.deliver(Joined(node))
        run.until(lambda: not run.host.conductor.open)
        run.faults.thaw(node)
        run.until(lambda: run.has(Cancelled, node))
        assert not run.answers(node, echo=True)
        run.finish()


def a_worker_hands_over(make: Callable[[int], EngineConfig]) -> None:
    """A worker that hands over before its first minibatch computes one. Its other samples are returned."""
    with trial(make(1), Deadline(Asynchronous(samples=SAMPLES), 0.1), STEP_SECONDS) as run:
        node = run.joined()
        run.faults.freeze(node)  # before it can send an update
        run.deliver(Joined(node))
        run.until(lambda: any(isinstance(action, HandOver) for r in run.records for action in r.actions))
        run.faults.thaw(node)
        run.until(lambda: run.answers(node, echo=False) > 0)
        brought = [r.event.update.samples for r in run.records if isinstance(r.event, Arrived)]
        assert brought == [BATCH]
        run.finish()


def a_worker_leaves(make: Callable[[int], EngineConfig]) -> None:
    """A worker with notice gets no more tasks, finishes its open tasks, and ends."""
    with trial(make(2), Asynchronous(samples=SAMPLES // 2)) as run:
        node = run.joined()
        run.faults.freeze(node)  # before it can send an update
        run.deliver(Joined(node))
        tasks = list(run.host.conductor.busy[node])
        run.faults.leave(node)
        run.faults.thaw(node)
        run.until(lambda: run.has(Leaving, node))
        assert node not in run.host.conductor.slots
        run.until(lambda: run.has(Lost, node))
        # A task that it got between its update and the notice may be lost.
        assert all(map(run.answered, tasks)), "a leaving worker ends only after its open tasks"
        run.finish()


def an_alarm_rings(make: Callable[[int], EngineConfig]) -> None:
    """An alarm fires at its time, and not earlier, on every clock."""
    with trial(make(1), Sleeper()) as run:
        sleeper = run.host.conductor.strategy
        assert isinstance(sleeper, Sleeper)
        run.until(lambda: sleeper.rang > 0)
        assert sleeper.rang >= sleeper.due
        run.finish()


def no_worker_is_left(make: Callable[[int], EngineConfig]) -> None:
    """A run without workers waits, and continues when workers join."""
    with trial(make(2), Synchronous()) as run:
        nodes = [run.joined(), run.joined()]
        for node in nodes:
            run.faults.freeze(node)
            run.deliver(Joined(node))
        for node in nodes:
            run.faults.kill(node)
        replacements = []
        while run.host.conductor.slots:
            if isinstance(message := run.next(), Joined):
                replacements.append(message)
            else:
                run.deliver(message)
        assert not run.host.conductor.version
        for joined in replacements:
            run.deliver(joined)
        run.finish()


def gossip(place: EngineConfig, *faults: Fault) -> Run:
    """Return the result of a run with `Gossip`, and check that its model includes every sample."""
    settings = RunConfig(until=f"epochs>={EPOCHS}", chaos=Chaos(faults) if faults else None)
    with prepared_mesh(Recipe(small_job(), Gossip(), place, settings)) as mesh:
        run = mesh.run()
    assert run.summary["samples_merged"] == SAMPLES * EPOCHS
    assert not run.summary["samples_left_out"]
    return run


def peers_exchange_models(make: Callable[[int], EngineConfig]) -> None:
    """Every task of a peer returns an update, and every request returns another peer's model."""
    place = make(2)
    if place.mesh is None:
        return
    records = gossip(place).records
    for peer in place.names:
        log = [record for record in records if record.peer == peer]
        actions = [action for record in log for action in record.actions]
        started = {action.task.id for action in actions if isinstance(action, Start)}
        arrived = {record.event.update.id for record in log if isinstance(record.event, Arrived)}
        assert started == arrived, f"updates of {peer} are lost: {started - arrived}"
        asked = [action.tag for action in actions if isinstance(action, Request)]
        received = {r.event.model.request_tag for r in log if isinstance(r.event, ModelReceived)}
        lost = {*asked[:-1]} - received  # the run may end before the last model arrives
        assert len(asked) > 1
        assert not lost, f"requests {lost} of {peer} or the models that answer them are lost"


def a_peer_dies(make: Callable[[int], EngineConfig]) -> None:
    """The other peers detect a killed peer. Its replacement has a new name and takes over its samples."""
    place = make(2)
    if place.mesh is None:
        return
    _, peer = place.names
    run = gossip(place, Fault("kill", machine=peer, at_versions=(4,)))
    assert any(isinstance(r.event, PeerLost) and r.event.peer == peer for r in run.records)
    assert f"{peer}.2" in run.summary["peers_averaged"]


SCENARIOS = (
    a_worker_dies_while_computing,
    a_worker_dies_after_sending,
    a_worker_joins_in_mid_round,
    a_worker_answers_late,
    a_worker_is_told_to_stop,
    a_worker_hands_over,
    a_worker_leaves,
    an_alarm_rings,
    no_worker_is_left,
    peers_exchange_models,
    a_peer_dies,
)


def check_engine(make: Callable[[int], EngineConfig]) -> None:
    """Run every failure scenario on the engine that `make(workers)` returns. Raise AssertionError if one fails."""
    for scenario in SCENARIOS:
        scenario(make)
