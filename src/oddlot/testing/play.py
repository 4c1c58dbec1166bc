"""A run without an engine: a conductor, and workers that do what a line of text says.

join a                      a worker is here
finish a, finish a:3        its oldest task is done, or this one; samples=4: only so many; loss=0.5
late a:1                    an answer to a task that was lost, cancelled, timed out or answered before
refuse a                    its oldest task brought bad numbers
cancelled a                 it stopped: first a task that nobody waits for, then its oldest
leave a, lose a             it will vanish, it has vanished
wait 2.5                    seconds pass; alarms and deadlines ring when they are due
wait alarm                  until the next one is due
change norm=1 inner=-1      the store reports a measured merge
evaluated accuracy=0.9      the oldest evaluation that was asked for is done
fitted 2x8=0.5 3x8=0.7      so many seconds it takes, on average, until 2 or 3 have answered, with 8 samples each
resume                      the run goes on from a checkpoint: everybody is lost
show                        nothing happens, and the books are shown
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

from oddlot.core.commands import (
    Abort,
    Action,
    Blend,
    Drop,
    Evaluate,
    Evict,
    HandOver,
    Keep,
    Release,
    Skip,
    Start,
    Step,
)
from oddlot.core.conductor import Conductor
from oddlot.core.errors import ProtocolError, UnknownName, UsageError
from oddlot.core.events import (
    Arrived,
    Cancelled,
    Changed,
    Evaluated,
    Fitted,
    Joined,
    Leaving,
    Lost,
    Refused,
    Resumed,
    Stimulus,
    Ticked,
)
from oddlot.core.ledger import Ledger
from oddlot.core.records import Record
from oddlot.core.spans import Span, samples_in
from oddlot.core.strategy import Strategy
from oddlot.core.tasks import Facts, Task, TaskId

RINGS_AT_MOST = 1000
"""in one `wait`: a strategy whose alarms ring on and on at one time never ends"""


@dataclass(frozen=True, slots=True)
class Data:
    """The data of a play and how they are leased: `data size=64 epochs=2 barrier=true in_flight=1 batch=8`."""

    size: int = 64
    epochs: int | None = None
    barrier: bool = False
    in_flight: int = 1
    batch: int = 8
    shards: int = 1
    skip_bad: bool = False

    @classmethod
    def read(cls, line: str) -> "Data":
        """The data that a line tells of."""
        values: dict[str, Any] = {}
        names = [each.name for each in fields(cls)]
        for word in line.split()[1:]:
            name, _, value = word.partition("=")
            if name not in names:
                raise UnknownName("setting of `data`", name, names)
            values[name] = value == "true" if value in {"true", "false"} else int(value)
        return cls(**values)

    def __str__(self) -> str:
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        parts = [f"{name}={str(value).lower()}" for name, value in told.items() if value not in (None, False)]
        return " ".join(["data", *parts])

    def conductor(self, strategy: Strategy) -> Conductor:
        """A conductor at the start of a run on these data."""
        ledger = Ledger(self.size, self.epochs, self.shards, self.barrier, self.skip_bad)
        return Conductor(strategy, ledger, self.batch, self.in_flight)


@dataclass
class Play:
    """A conductor with the little that its surroundings must remember."""

    conductor: Conductor
    now: float = 0.0
    tasks: dict[TaskId, Task] = field(default_factory=dict)
    """every task that was ever started"""
    evaluating: list[int] = field(default_factory=list)
    """versions whose `Evaluated` is to come"""
    measuring: int = 0
    """how many `Changed` of measured merges are to come"""

    def do(self, line: str) -> Iterator[Record]:
        """Let this happen; the records of it. UsageError when it cannot happen."""
        verb, *words = line.split()
        if verb not in VERBS:
            raise UnknownName("verb", verb, VERBS)
        options = dict(word.split("=", 1) for word in words if "=" in word)
        try:
            events = VERBS[verb](self, *(word for word in words if "=" not in word), **options)
        except TypeError as error:
            told = f"`{line}` has a word too few or too many: {error}"
            raise UsageError(told, "wrong_words", given=line, reason=str(error)) from None
        for event in events:
            record = self.conductor.handle(event, self.now)
            self._remember(record)
            yield record

    def _remember(self, record: Record) -> None:
        for action in record.actions:
            match action:
                case Start(task):
                    self.tasks[task.id] = task
                case Evaluate(version) if version not in self.evaluating:
                    self.evaluating.append(version)
                case Step(measure=window) | Blend(measure=window) if window:
                    self.measuring += 1

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

    def _refuse(self, whose: str) -> Iterator[Stimulus]:
        yield Refused(self._task(whose, self.conductor.expects).id, "a number is not finite")

    def _cancelled(self, whose: str) -> Iterator[Stimulus]:
        busy = self.conductor.busy.get(whose, {})
        unexpected = [task for task in busy if not self.conductor.expects(task)]
        task = self._task(unexpected[0] if unexpected else whose, lambda _: True)
        yield Cancelled(task.id, task.node)

    def _wait(self, seconds: str) -> Iterator[Stimulus]:
        end, rings = self.conductor.alarm if seconds == "alarm" else self.now + float(seconds), 0
        if end == inf:
            raise UsageError("no alarm is set, and no task is open", "nothing_to_wait_for")
        while self.conductor.alarm <= end:
            self.now = max(self.now, self.conductor.alarm)
            yield Ticked()
            rings += 1
            if rings > RINGS_AT_MOST:
                raise ProtocolError(
                    f"alarms rang {rings} times in {seconds} s: each must be later than the last",
                    "alarms_without_end",
                    rings=rings,
                )
        self.now = end

    def _change(self, norm: str, inner: str = "") -> Iterator[Stimulus]:
        self.measuring -= 1
        yield Changed(self.conductor.version, float(norm), float(inner) if inner else None)

    def _evaluated(self, **metrics: str) -> Iterator[Stimulus]:
        if not self.evaluating:
            raise UsageError("no evaluation was asked for", "no_evaluation")
        version = self.evaluating.pop(0)
        yield Evaluated(version, {name: float(value) for name, value in metrics.items()})

    def _fitted(self, **rows: str) -> Iterator[Stimulus]:
        choices = [(row.split("x"), float(seconds)) for row, seconds in rows.items()]
        yield Fitted(tuple((int(k), int(samples), seconds) for (k, samples), seconds in choices))

    def _resume(self) -> Iterator[Stimulus]:
        self.evaluating.clear()
        yield Resumed(0)

    def _show(self) -> Iterator[Stimulus]:
        yield from ()

    def _task(self, whose: str, fits: Callable[[TaskId], bool]) -> Task:
        """The task of that name, or the oldest fitting one of that worker."""
        held = [whose] if ":" in whose else list(self.conductor.busy.get(whose, ()))
        task = next((self.tasks[task] for task in held if task in self.tasks and fits(task)), None)
        if task is None:
            raise UsageError(
                f"there is no such task of {whose}: `finish` and `refuse` are for open tasks, `late` for others. "
                f"Open are: {', '.join(self.conductor.open) or 'none'}",
                "no_such_task",
                whose=whose,
            )
        return task

    def _answer(self, task: Task, samples: int | None = None, loss: float | None = None) -> Arrived:
        samples = samples_in(task.spans) if samples is None else samples
        return Arrived(Facts(task.id, task.node, task.version, samples, task.kind, loss))


VERBS: dict[str, Callable[..., Iterator[Stimulus]]] = {
    "join": Play._join,
    "finish": Play._finish,
    "late": Play._late,
    "refuse": Play._refuse,
    "cancelled": Play._cancelled,
    "leave": Play._leave,
    "lose": Play._lose,
    "wait": Play._wait,
    "change": Play._change,
    "evaluated": Play._evaluated,
    "fitted": Play._fitted,
    "resume": Play._resume,
    "show": Play._show,
}


def told(record: Record) -> list[str]:
    """The record's decisions, a line each: `> assign a:1 8 [0:0-8] v0`, `> step a:1*0.50 b:2*0.50`."""
    lines = [f"at {record.now:g} s"] if isinstance(record.event, Ticked) else []
    lines += [record.remark] if record.remark else []
    return [f"> {line}" for line in lines + [_notation(action) for action in record.actions]]


def books(conductor: Conductor) -> str:
    """A line that shows the books: `owed` are tasks that nobody waits for and whose workers have not answered."""
    ledger = conductor.ledger
    owed = [task for held in conductor.busy.values() for task in held if task not in conductor.open]
    parts = {
        "idle": list(conductor.idle),
        "open": list(conductor.open),
        "owed": owed,
        "inbox": list(conductor.inbox),
        "returned": [_spans((span,)) for lane in ledger.lanes for span in lane.returned],
    }
    shown = [f"{name} {' '.join(part) or '-'}" for name, part in parts.items()]
    return ", ".join([f"> version {conductor.version}, epoch {ledger.epoch}", *shown])


def _notation(action: Action) -> str:
    match action:
        case Start(task):
            kind = "" if task.kind == "gradient" else f" {task.kind}"
            pull = "" if task.pull is None else f" pull {task.pull:.2f}"
            return (
                f"assign {task.id} {samples_in(task.spans)} {_spans(task.spans)} v{task.version}{kind}{pull}"
            )
        case Abort(task_id):
            return f"abort {task_id}"
        case Evict(node):
            return f"evict {node}"
        case Skip(spans):
            return f"skip {_spans(spans)}"
        case HandOver(task_id):
            return f"hand over {task_id}"
        case Step(shares, measure) | Blend(shares, measure):
            parts = [f"{update}*{share:.2f}" for update, share in shares.items()]
            return " ".join([type(action).__name__.lower(), *parts, *["measure"] * (measure > 0)])
        case Drop(update):
            return f"drop {update}"
        case Evaluate(version) | Keep(version) | Release(version):
            return f"{type(action).__name__.lower()} v{version}"


def _spans(spans: tuple[Span, ...]) -> str:
    return "[" + " ".join(f"{epoch}:{start}-{stop}" for epoch, start, stop in spans) + "]"
