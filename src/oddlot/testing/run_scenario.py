"""A run without an engine: each line of text is an event.

join a                      worker a joins
finish a, finish a:3        its oldest task, or task a:3, returns an update; options: samples=4 (partial), loss=0.5
late a:1                    an update of a task that was lost, cancelled, timed out or finished before
reject a                    the update of its oldest task has invalid numbers
cancelled a                 it stopped a task: its oldest cancelled task or, without any, its oldest task
leave a, lose a             it gets a preemption notice; it is lost
wait 2.5                    seconds pass; alarms and timeouts fire when they are due
wait alarm                  time passes until the next alarm or timeout
change norm=1 inner=-1      the store reports a measured merge; option: drift=0.1, relative to the marked weights
evaluated accuracy=0.9      the oldest requested evaluation is finished
peer p, peer_lost p         peer p of a mesh is reachable; it is lost. The first worker that joins is peer a itself
request p 3                 peer p asks for the model, with tag 3
model p request_tag=1         a model of peer p arrives, in reply to request 1; options: reply=2, the tag for a reply to
                            it; loss=0.5; weight=0.25; layers=0,2 (only these)
bad_model p request_tag=1     a model of peer p is rejected
fitted 2x8=0.5 3x8=0.7      estimated mean seconds until 2 or 3 workers have finished tasks of 8 samples
resume                      the run is resumed from a checkpoint: all workers are lost
show                        no event: the state of the run is printed
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

from oddlot.core import commands
from oddlot.core.conductor import Conductor
from oddlot.core.events import (
    Arrived,
    Cancelled,
    Changed,
    Evaluated,
    Joined,
    Leaving,
    Lost,
    ModelReceived,
    ModelRejected,
    ModelRequested,
    PeerJoined,
    PeerLost,
    Resumed,
    RoundTimesFitted,
    Stimulus,
    Ticked,
    UpdateRejected,
)
from oddlot.core.peers import Drift, LayerDrift, PeerModel, Peers
from oddlot.core.records import Record
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.sample_spans import Span, samples_in
from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import ProtocolError, UnknownName, UsageError
from oddlot.core.tasks import Facts, NodeId, Task, TaskId

RINGS_AT_MOST = 1000
"""Largest number of alarms in one `wait`, for strategies that always set an alarm at the present time."""


@dataclass(frozen=True, slots=True)
class Data:
    """The sizes of a run, from a line such as `data size=64 epochs=2 barrier=true in_flight=1 batch=8`."""

    size: int = 64
    """Number of samples."""
    epochs: int | None = None
    """Number of epochs. None for no limit."""
    barrier: bool = False
    """Whether an epoch starts only when the previous epoch is merged."""
    in_flight: int = 1
    """Number of open tasks per worker."""
    batch: int = 8
    """Samples per minibatch."""
    shards: int = 1
    """Number of shards."""
    skip_bad: bool = False
    """Whether samples with repeatedly invalid updates are skipped."""

    @classmethod
    def read(cls, line: str) -> "Data":
        """Read a line `data ...`."""
        values: dict[str, Any] = {}
        names = [each.name for each in fields(cls)]
        for word in line.split()[1:]:
            name, _, value = word.partition("=")
            if name not in names:
                raise UnknownName("setting of `data`", name, names)
            values[name] = value == "true" if value in {"true", "false"} else int(value)
        return cls(**values)

    def __str__(self) -> str:
        settings = {each.name: getattr(self, each.name) for each in fields(self)}
        parts = [
            f"{name}={str(value).lower()}" for name, value in settings.items() if value not in (None, False)
        ]
        return " ".join(["data", *parts])

    def conductor(self, strategy: Strategy) -> Conductor:
        """Return the conductor of a new run or, if the strategy runs on a mesh, of its peer `a`."""
        ledger = SampleLedger(self.size, self.epochs, self.shards, self.barrier, self.skip_bad)
        peers = Peers("a", ["a"]) if strategy.traits(self.batch).mesh else Peers()
        return Conductor(strategy, ledger, self.batch, self.in_flight, peers=peers)


@dataclass
class ScenarioRun:
    """Passes events from lines of text to a conductor."""

    conductor: Conductor
    now: float = 0.0
    tasks: dict[TaskId, Task] = field(default_factory=dict)
    """All tasks that were started."""
    evaluating: list[int] = field(default_factory=list)
    """Versions with a requested evaluation, before their `Evaluated`."""
    measuring: int = 0
    """Number of measured merges without a `Changed` so far."""
    requests: list[tuple[NodeId, int]] = field(default_factory=list)
    """Peers and tags of requests without a reply so far."""
    models: int = 0
    """Number of models that peers have sent."""

    def do(self, line: str) -> Iterator[Record]:
        """Handle the events of a line and yield their records. Raise UsageError if the line is not possible now."""
        verb, *words = line.split()
        if verb not in VERBS:
            raise UnknownName("verb", verb, VERBS)
        options = dict(word.split("=", 1) for word in words if "=" in word)
        try:
            events = VERBS[verb](self, *(word for word in words if "=" not in word), **options)
        except TypeError as error:
            message = f"`{line}` has a missing or an extra word: {error}"
            raise UsageError(message, "wrong_words", given=line, reason=str(error)) from None
        for event in events:
            record = self.conductor.handle(event, self.now)
            self._remember(record)
            yield record

    def _remember(self, record: Record) -> None:
        for action in record.actions:
            match action:
                case commands.Start(task):
                    self.tasks[task.id] = task
                case commands.Evaluate(version) if version not in self.evaluating:
                    self.evaluating.append(version)
                case commands.Step(measure=window, drift=drift) if window or drift is not None:
                    self.measuring += 1
                case commands.Blend(measure=window) if window:
                    self.measuring += 1
                case commands.Request(peer, tag):
                    self.requests.append((peer, tag))
                case commands.Dispatch(peer, PeerModel(reply_tag=int(tag))):
                    self.requests.append((peer, tag))

    def _join(self, node: str) -> Iterator[Stimulus]:
        yield Joined(node)

    def _leave(self, node: str) -> Iterator[Stimulus]:
        yield Leaving(node)

    def _lose(self, node: str) -> Iterator[Stimulus]:
        yield Lost(node)

    def _finish(self, whose: str, samples: str = "", loss: str = "") -> Iterator[Stimulus]:
        task = self._task(whose, self.conductor.expects)
        yield self._answer(task, int(samples) if samples else None, float(loss) if loss else None)

    def _late(self, whose: str) -> Iterator[Stimulus]:
        yield self._answer(self._task(whose, lambda task: not self.conductor.expects(task)))

    def _reject(self, whose: str) -> Iterator[Stimulus]:
        yield UpdateRejected(self._task(whose, self.conductor.expects).id, "a number is not finite")

    def _cancelled(self, whose: str) -> Iterator[Stimulus]:
        busy = self.conductor.busy.get(whose, {})
        unexpected = [task for task in busy if not self.conductor.expects(task)]
        task = self._task(unexpected[0] if unexpected else whose, lambda _: True)
        yield Cancelled(task.id, task.node)

    def _wait(self, seconds: str) -> Iterator[Stimulus]:
        end, rings = self.conductor.alarm if seconds == "alarm" else self.now + float(seconds), 0
        if end == inf:
            raise UsageError(
                "nothing to wait for: no alarm is set, and no task is open", "nothing_to_wait_for"
            )
        while self.conductor.alarm <= end:
            self.now = max(self.now, self.conductor.alarm)
            yield Ticked()
            rings += 1
            if rings > RINGS_AT_MOST:
                raise ProtocolError(
                    f"alarms rang {rings} times in {seconds} s: each alarm must be later than the last",
                    "alarms_without_end",
                    rings=rings,
                )
        self.now = end

    def _change(self, norm: str, inner: str = "", drift: str = "") -> Iterator[Stimulus]:
        self.measuring -= 1
        change = LayerDrift(float(drift), 1.0, 1.0 + float(drift)) if drift else None
        measured = Drift(change.distance, 1.0, 1.0, (change, change)) if change else None
        yield Changed(self.conductor.version, float(norm), float(inner) if inner else None, measured)

    def _peer(self, peer: str) -> Iterator[Stimulus]:
        yield PeerJoined(peer)

    def _peer_lost(self, peer: str) -> Iterator[Stimulus]:
        yield PeerLost(peer)

    def _request(self, peer: str, tag: str) -> Iterator[Stimulus]:
        yield ModelRequested(peer, int(tag))

    def _model(
        self,
        peer: str,
        request_tag: str = "",
        reply: str = "",
        loss: str = "",
        weight: str = "1",
        layers: str = "",
    ) -> Iterator[Stimulus]:
        self.models += 1
        tag = int(request_tag) if request_tag else None
        if (peer, tag) in self.requests:
            self.requests.remove((peer, tag))  # type: ignore[arg-type]  # `tag` is an int here
        yield ModelReceived(
            PeerModel(
                f"{peer}>{self.models}",
                peer,
                samples=self.conductor.ledger.merged_in_all,
                request_tag=tag,
                reply_tag=int(reply) if reply else None,
                loss=float(loss) if loss else None,
                weight=float(weight),
                layers=tuple(map(int, layers.split(","))) if layers else None,
            )
        )

    def _bad_model(self, peer: str, request_tag: str = "") -> Iterator[Stimulus]:
        yield ModelRejected(peer, int(request_tag) if request_tag else None, "a number is not finite")

    def _evaluated(self, **metrics: str) -> Iterator[Stimulus]:
        if not self.evaluating:
            raise UsageError("no evaluation was requested", "no_evaluation")
        version = self.evaluating.pop(0)
        yield Evaluated(version, {name: float(value) for name, value in metrics.items()})

    def _fitted(self, **rows: str) -> Iterator[Stimulus]:
        choices = [(row.split("x"), float(seconds)) for row, seconds in rows.items()]
        yield RoundTimesFitted(tuple((int(k), int(samples), seconds) for (k, samples), seconds in choices))

    def _resume(self) -> Iterator[Stimulus]:
        self.evaluating.clear()
        yield Resumed(0)

    def _show(self) -> Iterator[Stimulus]:
        yield from ()

    def _task(self, whose: str, fits: Callable[[TaskId], bool]) -> Task:
        """Return the task with this name, or the oldest matching task of the worker with this name."""
        held = [whose] if ":" in whose else list(self.conductor.busy.get(whose, ()))
        task = next((self.tasks[task] for task in held if task in self.tasks and fits(task)), None)
        if task is None:
            raise UsageError(
                f"there is no such task of {whose}: `finish` and `reject` need an open task, `late` another one. "
                f"Open tasks: {', '.join(self.conductor.open) or 'none'}",
                "no_such_task",
                whose=whose,
            )
        return task

    def _answer(self, task: Task, samples: int | None = None, loss: float | None = None) -> Arrived:
        samples = samples_in(task.spans) if samples is None else samples
        return Arrived(Facts(task.id, task.node, task.version, samples, task.kind, loss))


VERBS: dict[str, Callable[..., Iterator[Stimulus]]] = {
    "join": ScenarioRun._join,
    "finish": ScenarioRun._finish,
    "late": ScenarioRun._late,
    "reject": ScenarioRun._reject,
    "cancelled": ScenarioRun._cancelled,
    "leave": ScenarioRun._leave,
    "lose": ScenarioRun._lose,
    "wait": ScenarioRun._wait,
    "change": ScenarioRun._change,
    "evaluated": ScenarioRun._evaluated,
    "fitted": ScenarioRun._fitted,
    "peer": ScenarioRun._peer,
    "peer_lost": ScenarioRun._peer_lost,
    "request": ScenarioRun._request,
    "model": ScenarioRun._model,
    "bad_model": ScenarioRun._bad_model,
    "resume": ScenarioRun._resume,
    "show": ScenarioRun._show,
}


def decisions(record: Record) -> list[str]:
    """Return the decisions of a record as lines, such as `> assign a:1 8 [0:0-8] v0` or `> step a:1*0.50 b:2*0.50`."""
    lines = [f"at {record.now:g} s"] if isinstance(record.event, Ticked) else []
    lines += [record.remark] if record.remark else []
    return [f"> {line}" for line in lines + [_notation(action) for action in record.actions]]


def state_line(conductor: Conductor) -> str:
    """Return a line with the state of the run.

    `owed` are cancelled or timed-out tasks that their workers have not confirmed yet.
    """
    ledger = conductor.ledger
    owed = [task for held in conductor.busy.values() for task in held if task not in conductor.open]
    parts = {
        "idle": list(conductor.idle),
        "open": list(conductor.open),
        "owed": owed,
        "inbox": list(conductor.inbox),
        "returned": [_spans((span,)) for cursor in ledger.cursors for span in cursor.returned],
    }
    shown = [f"{name} {' '.join(part) or '-'}" for name, part in parts.items()]
    return ", ".join([f"> version {conductor.version}, epoch {ledger.epoch}", *shown])


def _notation(action: commands.Action) -> str:
    match action:
        case commands.Start(task):
            kind = "" if task.kind == "gradient" else f" {task.kind}"
            pull = "" if task.pull is None else f" pull {task.pull:.2f}"
            return (
                f"assign {task.id} {samples_in(task.spans)} {_spans(task.spans)} v{task.version}{kind}{pull}"
            )
        case commands.Abort(task_id):
            return f"abort {task_id}"
        case commands.Evict(node):
            return f"evict {node}"
        case commands.Skip(spans):
            return f"skip {_spans(spans)}"
        case commands.HandOver(task_id):
            return f"hand over {task_id}"
        case commands.Step() | commands.Blend() | commands.Average():
            return _merge_notation(action)
        case commands.Drop(update):
            return f"drop {update}"
        case commands.Request() | commands.Dispatch() | commands.Complete() | commands.Mark():
            return _exchange_notation(action)
        case commands.Evaluate(version) | commands.Keep(version) | commands.Release(version):
            return f"{type(action).__name__.lower()} v{version}"


def _merge_notation(merge: commands.Step | commands.Blend | commands.Average) -> str:
    parts = [f"{update}*{share:.2f}" for update, share in merge.shares.items()]
    is_kept = isinstance(merge, commands.Average) and merge.keep
    measured = not isinstance(merge, commands.Average) and merge.measure > 0
    drift = [merge.drift] if isinstance(merge, commands.Step) and merge.drift is not None else []
    return " ".join(
        [type(merge).__name__.lower(), *parts, *["keep"] * is_kept, *["measure"] * measured, *drift]
    )


def _exchange_notation(
    action: commands.Request | commands.Dispatch | commands.Complete | commands.Mark,
) -> str:
    match action:
        case commands.Request(peer, tag):
            return f"request {peer} {tag}"
        case commands.Dispatch(peer, model):
            return " ".join(["send", peer, *_about(model)])
        case commands.Complete(model_id, older):
            return f"complete {model_id} from {older}"
        case commands.Mark():
            return "mark"


def _about(model: PeerModel) -> list[str]:
    labels = {"request_tag": model.request_tag, "reply": model.reply_tag, "layers": model.layers}
    parts = [f"{name}={value}" for name, value in labels.items() if value is not None]
    return parts + ([f"weight={model.weight:g}"] if model.weight != 1 else [])


def _spans(spans: tuple[Span, ...]) -> str:
    return "[" + " ".join(f"{epoch}:{start}-{stop}" for epoch, start, stop in spans) + "]"
