"""Execution of strategies' commands on the conductor's state.

Each function executes one type of command. It raises ProtocolError if the command is invalid, changes the state, and
returns the action for the host and the event for the strategy. Each may be None.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from heapq import heappush
from math import inf, isfinite
from typing import Any, Protocol

from oddlot.core import commands
from oddlot.core.events import Changed, Joined
from oddlot.core.peers import ModelId, PeerModel, layers_of_both
from oddlot.core.sample_spans import Span, joined, samples_in
from oddlot.core.strategy import ConductorState
from oddlot.core.sum_tree import additions, chunks_of
from oddlot.core.support.errors import ProtocolError
from oddlot.core.task_timeouts import TaskTimeouts
from oddlot.core.tasks import GRADIENT_KINDS, Facts, NodeId, Task, TaskId, UpdateId, task_name

MAX_KEPT = 16
"""Largest number of versions that a strategy may keep at the same time. Each is a complete model."""

Outcome = tuple[commands.Action | None, Changed | None]


class ConductorParts(ConductorState, Protocol):
    """The state that commands change."""

    scheduled: bool
    tasks_made: int
    timeouts: TaskTimeouts
    held: dict[TaskId, Task]
    inbox: dict[UpdateId, Facts]
    alarms: list[float]
    least_slots: int
    waiting: dict[NodeId, Joined]

    def close(self, name: TaskId) -> Task:
        """Close an open task that its worker still holds."""


def possible(conductor: ConductorParts, given: Iterable[commands.Command]) -> Iterator[commands.Command]:
    """Yield the commands. While workers wait, updates are dropped instead of merged, if they are too few."""
    for command in list(given):
        shares = command.shares if isinstance(command, commands.Step | commands.Blend) else ()
        if conductor.waiting and 0 < len(shares) < conductor.least_slots:
            yield from map(commands.Drop, shares)
        else:
            yield command


def carry_out(conductor: ConductorParts, command: commands.Command) -> Outcome:
    """Execute a command. Raise ProtocolError if it is invalid."""
    return _CARRY_OUT[type(command)](conductor, command)


def _assign(conductor: ConductorParts, command: commands.Assign) -> Outcome:
    _check_assign(conductor, command)
    node, kind = command.node, command.kind
    version = _version(conductor, command.version, command)
    task_id = task_name(node, conductor.tasks_made + 1)
    spans = _lease(conductor, task_id, command)
    if not spans:
        return None, None
    merged = conductor.ledger.merged_in_all if conductor.scheduled else None
    task = Task(task_id, node, spans, version, kind, command.pull, merged)
    _occupy(conductor, task)
    conductor.timeouts.start(task, conductor.now, conductor.worker_stats, command.deadline)
    return commands.Start(task), None


def _check_assign(conductor: ConductorParts, command: commands.Assign) -> None:
    node = command.node
    if not conductor.slots.get(node):
        if node not in conductor.slots:
            message = f"{command} is impossible: {node} is not among view.nodes"
            raise ProtocolError(message, "no_such_node", node=node)
        raise ProtocolError(f"{command} is impossible: {node} has no free slot", "no_free_slot", node=node)
    if command.deadline is not None and not command.deadline > 0:
        message = f"{command} is impossible: a deadline must be a number of seconds above 0"
        raise ProtocolError(message, "invalid_deadline", deadline=command.deadline)
    if command.pull is not None and not (command.kind == "weights" and 0 <= command.pull <= 1):
        message = f"{command} is impossible: `pull` needs kind='weights' and must be from 0 to 1"
        raise ProtocolError(message, "invalid_pull", pull=command.pull)


def _lease(conductor: ConductorParts, task: TaskId, command: commands.Assign) -> tuple[Span, ...]:
    if command.samples < 1:
        raise ProtocolError(
            f"{command} is impossible: `samples` must be at least 1", "no_samples", samples=command.samples
        )
    shards = len(conductor.ledger.cursors)
    if command.shard is not None and not 0 <= command.shard < shards:
        message = f"{command} is impossible: shards are numbered from 0 to {shards - 1}"
        raise ProtocolError(message, "no_such_shard", shard=command.shard)
    if command.copy_of is None:
        samples = conductor.worker_stats.load(command.node, command.samples)
        return conductor.ledger.lease(task, samples, command.node, command.shard)
    if command.copy_of not in conductor.open:
        message = f"{command} is impossible: {command.copy_of} is not among view.tasks"
        raise ProtocolError(message, "no_such_task", task=command.copy_of)
    # Its samples may have been skipped because of another task.
    return conductor.ledger.share(task, command.copy_of) if conductor.expects(command.copy_of) else ()


def _occupy(conductor: ConductorParts, task: Task) -> None:
    """Occupy a slot of the task's worker."""
    node = task.node
    conductor.tasks_made += 1
    conductor.slots[node] -= 1
    del conductor.idle[node]
    if conductor.slots[node]:
        conductor.idle[node] = None  # after the others, in case this worker hangs
    conductor.open[task.id] = conductor.held[task.id] = task
    conductor.busy[node][task.id] = conductor.now
    conductor.stalled.pop(node, None)


def _cancel(conductor: ConductorParts, command: commands.Cancel) -> Outcome:
    _check_open(conductor, command)
    task = conductor.close(command.task)
    conductor.ledger.give_back(task.id)
    return commands.Abort(task.id, task.node), None


def _hand_over(conductor: ConductorParts, command: commands.HandOver) -> Outcome:
    _check_open(conductor, command)
    return command, None


def _check_open(conductor: ConductorParts, command: commands.Cancel | commands.HandOver) -> None:
    if command.task not in conductor.open:
        message = f"{command} is impossible: it is not among view.tasks"
        raise ProtocolError(message, "no_such_task", task=command.task)


def _step(conductor: ConductorParts, command: commands.Step) -> Outcome:
    step = _with_schedule(conductor, command) if conductor.scheduled else command
    step = _in_order(conductor, step)
    return step, _merge(conductor, command, points=False)


def _in_order(conductor: ConductorParts, command: commands.Step) -> commands.Step:
    """Return a step with sums in the order of their samples, and with their numbers of chunks.

    Raise ProtocolError unless they are complete subtrees of the sum over a contiguous range, with equal shares.
    """
    shares, inbox = command.shares, conductor.inbox
    kinds = {inbox[update].kind for update in shares if update in inbox}
    if "sum" not in kinds or shares.keys() - inbox.keys():
        return command  # `_merge` rejects unknown updates
    spans = sorted((conductor.ledger.leases[update].spans, update) for update in shares)
    parts = tuple(chunks_of(samples_in(each)) for each, _ in spans)
    try:
        additions(parts)
        is_whole = len(joined([span for each, _ in spans for span in each])) == 1
    except ValueError:
        is_whole = False
    if not (is_whole and len({*shares.values()}) == 1 and kinds == {"sum"}):
        message = f"{command} is impossible: sums need equal shares and a contiguous range of samples"
        raise ProtocolError(message, "incomplete_sum", updates=[*shares])
    return replace(command, shares={update: shares[update] for _, update in spans}, chunks=parts)


def _with_schedule(conductor: ConductorParts, command: commands.Step) -> commands.Step:
    """Add the number of samples merged before to a step with gradients. Deltas already follow the schedule."""
    kinds = {conductor.inbox[update].kind for update in command.shares if update in conductor.inbox}
    if len(kinds) > 1:
        raise ProtocolError(
            f"{command} is impossible: a learning-rate schedule needs gradients only, and these are of several kinds",
            "schedule_without_gradients",
        )
    return replace(command, merged=conductor.ledger.merged_in_all if kinds & {*GRADIENT_KINDS} else None)


def _blend(conductor: ConductorParts, command: commands.Blend) -> Outcome:
    return command, _merge(conductor, command, points=True)


def _merge(
    conductor: ConductorParts, command: commands.Step | commands.Blend, points: bool
) -> Changed | None:
    if not command.shares:
        raise ProtocolError(f"{command} is impossible: it names no update", "empty_merge")
    closed = False
    for update, share in command.shares.items():
        facts = conductor.inbox.pop(update, None)
        if facts is None:
            message = f"{command} is impossible: {update} is not in the inbox"
            raise ProtocolError(message, "no_such_update", update=update)
        if (facts.kind == "weights") is not points or not 0 <= share < inf:
            message = f"{command} is impossible: {update} is of kind {facts.kind!r} and its share is {share}"
            raise ProtocolError(message, "unmergeable_update", update=update, kind=facts.kind, share=share)
        conductor.worker_stats.merged(facts.sender)
        closed = conductor.ledger.merge(update) or closed
    conductor.version += 1
    # The store has the tensors, so it reports measured merges.
    is_measured = command.measure or (isinstance(command, commands.Step) and command.drift is not None)
    return Changed(conductor.version) if closed and not is_measured else None


def _drop(conductor: ConductorParts, command: commands.Drop) -> Outcome:
    if conductor.peers.models.pop(command.update, None) is not None:
        return command, None
    facts = conductor.inbox.pop(command.update, None)
    if facts is None:
        message = f"{command} is impossible: it is not in the inbox"
        raise ProtocolError(message, "no_such_update", update=command.update)
    conductor.ledger.give_back(command.update)
    conductor.worker_stats.dropped(facts.sender)
    return command, None


def _evaluate(conductor: ConductorParts, command: commands.Evaluate) -> Outcome:
    _version(conductor, command.version, command)
    return command, None


def _keep(conductor: ConductorParts, command: commands.Keep) -> Outcome:
    _version(conductor, command.version, command)
    key = str(command.version)
    if key not in conductor.kept and len(conductor.kept) == MAX_KEPT:
        raise ProtocolError(
            f"{command} is impossible: {MAX_KEPT} versions are kept already. Release one first",
            "too_many_kept",
        )
    conductor.kept[key] = conductor.kept.get(key, 0) + 1
    return command, None


def _release(conductor: ConductorParts, command: commands.Release) -> Outcome:
    key = str(command.version)
    if key not in conductor.kept:
        raise ProtocolError(f"{command} is impossible: it is not kept", "version_not_kept", version=key)
    conductor.kept[key] -= 1
    if not conductor.kept[key]:
        del conductor.kept[key]
    return command, None


def _wake(conductor: ConductorParts, command: commands.Wake) -> Outcome:
    if not isfinite(command.at):
        raise ProtocolError(
            f"{command} is impossible: `at` must be finite", "alarm_never_rings", at=command.at
        )
    heappush(conductor.alarms, command.at)
    return None, None


def _request(conductor: ConductorParts, command: commands.Request) -> Outcome:
    _check_peer(conductor, command)
    return command, None


def _send(conductor: ConductorParts, command: commands.Send) -> Outcome:
    _check_peer(conductor, command)
    model = PeerModel(
        conductor.peers.next_id(),
        conductor.peers.me,
        conductor.ledger.merged_in_all,
        command.request_tag,
        command.reply_tag,
        command.loss,
        command.weight,
        command.layers,
    )
    return commands.Dispatch(command.peer, model), None


def _check_peer(conductor: ConductorParts, command: commands.Request | commands.Send) -> None:
    if command.peer not in conductor.peers.living:
        message = f"{command} is impossible: {command.peer} is not among view.peers"
        raise ProtocolError(message, "no_such_peer", peer=command.peer)


def _average(conductor: ConductorParts, command: commands.Average) -> Outcome:
    if not command.shares:
        raise ProtocolError(f"{command} is impossible: it names no model", "empty_merge")
    for model, share in command.shares.items():
        _check_model(conductor, model, command)
        if not command.keep:
            del conductor.peers.models[model]
        if not 0 <= share <= 1:
            message = f"{command} is impossible: the share of {model} is {share}, not from 0 to 1"
            raise ProtocolError(message, "unmergeable_update", update=model, kind="weights", share=share)
    if (total := sum(command.shares.values())) >= 1:
        message = f"{command} is impossible: the shares add up to {total}, but must be below 1 together"
        raise ProtocolError(message, "unmergeable_update", update="", kind="weights", share=total)
    conductor.version += 1
    return command, None


def _complete(conductor: ConductorParts, command: commands.Complete) -> Outcome:
    _check_model(conductor, command.model, command)
    _check_model(conductor, command.older, command)
    newer, older = conductor.peers.models[command.model], conductor.peers.models[command.older]
    if newer is older or newer.sender != older.sender:
        message = f"{command} is impossible: {newer.id} and {older.id} are not two models of one peer"
        raise ProtocolError(message, "other_sender", sender=older.sender)
    del conductor.peers.models[older.id]
    conductor.peers.models[newer.id] = replace(newer, layers=layers_of_both(newer.layers, older.layers))
    return command, None


def _check_model(
    conductor: ConductorParts, model: ModelId, command: commands.Average | commands.Complete
) -> None:
    if model not in conductor.peers.models:
        message = f"{command} is impossible: {model} is not in the inbox"
        raise ProtocolError(message, "no_such_update", update=model)


def _version(conductor: ConductorParts, version: int | None, command: commands.Command) -> int:
    """Return the version that a command names, or the newest version for None. Raise ProtocolError if it is not
    kept."""
    if version is None or version == conductor.version:
        return conductor.version
    if str(version) not in conductor.kept:
        message = f"{command} is impossible: version {version} is neither newest nor kept"
        raise ProtocolError(message, "version_not_kept", version=version)
    return version


_CARRY_OUT: dict[type, Callable[[ConductorParts, Any], Outcome]] = {
    commands.Assign: _assign,
    commands.Cancel: _cancel,
    commands.HandOver: _hand_over,
    commands.Step: _step,
    commands.Blend: _blend,
    commands.Drop: _drop,
    commands.Evaluate: _evaluate,
    commands.Keep: _keep,
    commands.Release: _release,
    commands.Wake: _wake,
    commands.Request: _request,
    commands.Send: _send,
    commands.Average: _average,
    commands.Complete: _complete,
    commands.Mark: lambda _, command: (command, None),
}
