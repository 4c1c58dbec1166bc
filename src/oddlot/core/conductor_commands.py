"""Execution of strategies' commands on the conductor's state.

Each function executes one type of command. It raises ProtocolError if the command is invalid, changes the state, and
returns the action for the host and the event for the strategy, each of which may be None.
"""

from collections.abc import Callable
from dataclasses import replace
from heapq import heappush
from math import inf, isfinite
from typing import Any, Protocol

from oddlot.core.commands import (
    Abort,
    Action,
    Assign,
    Average,
    Blend,
    Cancel,
    Command,
    Complete,
    Dispatch,
    Drop,
    Evaluate,
    HandOver,
    Keep,
    Mark,
    Release,
    Request,
    Send,
    Start,
    Step,
    Wake,
)
from oddlot.core.errors import ProtocolError
from oddlot.core.events import Changed
from oddlot.core.peers import ModelId, PeerModel, layers_of_both
from oddlot.core.spans import Span
from oddlot.core.strategy import Books
from oddlot.core.task_timeouts import TaskTimeouts
from oddlot.core.tasks import Facts, Task, TaskId, UpdateId, task_name

MAX_KEPT = 16
"""Largest number of versions that a strategy may keep at the same time. Each is a complete model."""

Outcome = tuple[Action | None, Changed | None]


class OpenBooks(Books, Protocol):
    """The state that commands change."""

    scheduled: bool
    tasks_made: int
    timeouts: TaskTimeouts
    held: dict[TaskId, Task]
    inbox: dict[UpdateId, Facts]
    alarms: list[float]

    def close(self, name: TaskId) -> Task:
        """Close an open task that its worker still holds."""


def carry_out(books: OpenBooks, command: Command) -> Outcome:
    """Execute a command. Raise ProtocolError if it is invalid."""
    return _CARRY_OUT[type(command)](books, command)


def _assign(books: OpenBooks, command: Assign) -> Outcome:
    _check_assign(books, command)
    node, kind = command.node, command.kind
    version = _version(books, command.version, command)
    task_id = task_name(node, books.tasks_made + 1)
    spans = _lease(books, task_id, command)
    if not spans:
        return None, None
    merged = books.ledger.merged_in_all if books.scheduled and kind != "gradient" else None
    task = Task(task_id, node, spans, version, kind, command.pull, merged)
    _occupy(books, task)
    books.timeouts.start(task, books.now, books.roster, command.deadline)
    return Start(task), None


def _check_assign(books: OpenBooks, command: Assign) -> None:
    node = command.node
    if not books.slots.get(node):
        if node not in books.slots:
            told = f"{command} is impossible: {node} is not among view.nodes"
            raise ProtocolError(told, "no_such_node", node=node)
        raise ProtocolError(f"{command} is impossible: {node} has no free slot", "no_free_slot", node=node)
    if command.deadline is not None and not command.deadline > 0:
        told = f"{command} is impossible: a deadline must be a number of seconds above 0"
        raise ProtocolError(told, "invalid_deadline", deadline=command.deadline)
    if command.pull is not None and not (command.kind == "weights" and 0 <= command.pull <= 1):
        told = f"{command} is impossible: `pull` needs kind='weights' and must be from 0 to 1"
        raise ProtocolError(told, "invalid_pull", pull=command.pull)


def _lease(books: OpenBooks, task: TaskId, command: Assign) -> tuple[Span, ...]:
    if command.samples < 1:
        raise ProtocolError(
            f"{command} is impossible: `samples` must be at least 1", "no_samples", samples=command.samples
        )
    shards = len(books.ledger.lanes)
    if command.shard is not None and not 0 <= command.shard < shards:
        told = f"{command} is impossible: shards are numbered from 0 to {shards - 1}"
        raise ProtocolError(told, "no_such_shard", shard=command.shard)
    if command.again is None:
        samples = books.roster.load(command.node, command.samples)
        return books.ledger.lease(task, samples, command.node, command.shard)
    if command.again not in books.open:
        told = f"{command} is impossible: {command.again} is not among view.tasks"
        raise ProtocolError(told, "no_such_task", task=command.again)
    # Its samples may have been skipped because of another task.
    return books.ledger.share(task, command.again) if books.expects(command.again) else ()


def _occupy(books: OpenBooks, task: Task) -> None:
    """Occupy a slot of the task's worker."""
    node = task.node
    books.tasks_made += 1
    books.slots[node] -= 1
    del books.idle[node]
    if books.slots[node]:
        books.idle[node] = None  # after the others, in case this worker hangs
    books.open[task.id] = books.held[task.id] = task
    books.busy[node][task.id] = books.now
    books.stalled.pop(node, None)


def _cancel(books: OpenBooks, command: Cancel) -> Outcome:
    _check_open(books, command)
    task = books.close(command.task)
    books.ledger.give_back(task.id)
    return Abort(task.id, task.node), None


def _hand_over(books: OpenBooks, command: HandOver) -> Outcome:
    _check_open(books, command)
    return command, None


def _check_open(books: OpenBooks, command: Cancel | HandOver) -> None:
    if command.task not in books.open:
        told = f"{command} is impossible: it is not among view.tasks"
        raise ProtocolError(told, "no_such_task", task=command.task)


def _step(books: OpenBooks, command: Step) -> Outcome:
    step = _with_schedule(books, command) if books.scheduled else command
    return step, _merge(books, command, points=False)


def _with_schedule(books: OpenBooks, command: Step) -> Step:
    """Add the number of samples merged before to a step with gradients. Deltas already follow the schedule."""
    kinds = {books.inbox[update].kind for update in command.shares if update in books.inbox}
    if len(kinds) > 1:
        raise ProtocolError(
            f"{command} is impossible: a learning-rate schedule needs gradients only, and these are of several kinds",
            "schedule_without_gradients",
        )
    return replace(command, merged=books.ledger.merged_in_all if "gradient" in kinds else None)


def _blend(books: OpenBooks, command: Blend) -> Outcome:
    return command, _merge(books, command, points=True)


def _merge(books: OpenBooks, command: Step | Blend, points: bool) -> Changed | None:
    if not command.shares:
        raise ProtocolError(f"{command} is impossible: it names no update", "empty_merge")
    closed = False
    for update, share in command.shares.items():
        facts = books.inbox.pop(update, None)
        if facts is None:
            told = f"{command} is impossible: {update} is not in the inbox"
            raise ProtocolError(told, "no_such_update", update=update)
        if (facts.kind == "weights") is not points or not 0 <= share < inf:
            told = f"{command} is impossible: {update} is of kind {facts.kind!r} and its share is {share}"
            raise ProtocolError(told, "unmergeable_update", update=update, kind=facts.kind, share=share)
        books.roster.merged(facts.sender)
        closed = books.ledger.merge(update) or closed
    books.version += 1
    # The store, which has the tensors, reports measured merges.
    is_measured = command.measure or (isinstance(command, Step) and command.drift is not None)
    return Changed(books.version) if closed and not is_measured else None


def _drop(books: OpenBooks, command: Drop) -> Outcome:
    if books.peers.models.pop(command.update, None) is not None:
        return command, None
    facts = books.inbox.pop(command.update, None)
    if facts is None:
        told = f"{command} is impossible: it is not in the inbox"
        raise ProtocolError(told, "no_such_update", update=command.update)
    books.ledger.give_back(command.update)
    books.roster.dropped(facts.sender)
    return command, None


def _evaluate(books: OpenBooks, command: Evaluate) -> Outcome:
    _version(books, command.version, command)
    return command, None


def _keep(books: OpenBooks, command: Keep) -> Outcome:
    _version(books, command.version, command)
    key = str(command.version)
    if key not in books.kept and len(books.kept) == MAX_KEPT:
        raise ProtocolError(
            f"{command} is impossible: {MAX_KEPT} versions are kept already. Release one first",
            "too_many_kept",
        )
    books.kept[key] = books.kept.get(key, 0) + 1
    return command, None


def _release(books: OpenBooks, command: Release) -> Outcome:
    key = str(command.version)
    if key not in books.kept:
        raise ProtocolError(f"{command} is impossible: it is not kept", "version_not_kept", version=key)
    books.kept[key] -= 1
    if not books.kept[key]:
        del books.kept[key]
    return command, None


def _wake(books: OpenBooks, command: Wake) -> Outcome:
    if not isfinite(command.at):
        raise ProtocolError(
            f"{command} is impossible: `at` must be finite", "alarm_never_rings", at=command.at
        )
    heappush(books.alarms, command.at)
    return None, None


def _request(books: OpenBooks, command: Request) -> Outcome:
    _check_peer(books, command)
    return command, None


def _send(books: OpenBooks, command: Send) -> Outcome:
    _check_peer(books, command)
    model = PeerModel(
        books.peers.next_id(),
        books.peers.me,
        books.ledger.merged_in_all,
        command.answers,
        command.reply_tag,
        command.loss,
        command.weight,
        command.layers,
    )
    return Dispatch(command.peer, model), None


def _check_peer(books: OpenBooks, command: Request | Send) -> None:
    if command.peer not in books.peers.living:
        told = f"{command} is impossible: {command.peer} is not among view.peers"
        raise ProtocolError(told, "no_such_peer", peer=command.peer)


def _average(books: OpenBooks, command: Average) -> Outcome:
    if not command.shares:
        raise ProtocolError(f"{command} is impossible: it names no model", "empty_merge")
    for model, share in command.shares.items():
        _check_model(books, model, command)
        if not command.keep:
            del books.peers.models[model]
        if not 0 <= share <= 1:
            told = f"{command} is impossible: the share of {model} is {share}, not from 0 to 1"
            raise ProtocolError(told, "unmergeable_update", update=model, kind="weights", share=share)
    if (total := sum(command.shares.values())) >= 1:
        told = f"{command} is impossible: the shares add up to {total}, but must be below 1 together"
        raise ProtocolError(told, "unmergeable_update", update="", kind="weights", share=total)
    books.version += 1
    return command, None


def _complete(books: OpenBooks, command: Complete) -> Outcome:
    _check_model(books, command.model, command)
    _check_model(books, command.older, command)
    newer, older = books.peers.models[command.model], books.peers.models[command.older]
    if newer is older or newer.sender != older.sender:
        told = f"{command} is impossible: {newer.id} and {older.id} are not two models of one peer"
        raise ProtocolError(told, "other_sender", sender=older.sender)
    del books.peers.models[older.id]
    books.peers.models[newer.id] = replace(newer, layers=layers_of_both(newer.layers, older.layers))
    return command, None


def _check_model(books: OpenBooks, model: ModelId, command: Average | Complete) -> None:
    if model not in books.peers.models:
        told = f"{command} is impossible: {model} is not in the inbox"
        raise ProtocolError(told, "no_such_update", update=model)


def _version(books: OpenBooks, version: int | None, command: Command) -> int:
    """Return the version that a command names (None: the newest). Raise ProtocolError if it is not kept."""
    if version is None or version == books.version:
        return books.version
    if str(version) not in books.kept:
        told = f"{command} is impossible: version {version} is neither newest nor kept"
        raise ProtocolError(told, "version_not_kept", version=version)
    return version


_CARRY_OUT: dict[type, Callable[[OpenBooks, Any], Outcome]] = {
    Assign: _assign,
    Cancel: _cancel,
    HandOver: _hand_over,
    Step: _step,
    Blend: _blend,
    Drop: _drop,
    Evaluate: _evaluate,
    Keep: _keep,
    Release: _release,
    Wake: _wake,
    Request: _request,
    Send: _send,
    Average: _average,
    Complete: _complete,
    Mark: lambda _, command: (command, None),
}
