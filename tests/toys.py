"""Small strategies for tests of the conductor, with commands that the built-in strategies do not use."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from oddlot.core.commands import Assign, Blend, Command, Evaluate, Keep, Release, Step, Wake
from oddlot.core.events import AlarmFired, Arrived, Changed, Event, Joined
from oddlot.core.strategy import Strategy, View, assign_idle
from oddlot.core.tasks import TaskId, UpdateId


@dataclass
class Backups(Strategy):
    """A strategy that applies every update. When no samples are left, idle workers repeat the oldest open task."""

    samples: int = 8
    repeated: dict[TaskId, bool] = field(default_factory=dict)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        if isinstance(event, Arrived):
            yield Step({event.update.id: 1.0})
            yield from assign_idle(view, self.samples)
        elif view.work_left:
            yield from assign_idle(view, self.samples)
        else:
            fresh = (task for task in view.tasks if task not in self.repeated)
            for node, task in zip(view.idle, fresh, strict=False):
                self.repeated[task] = True
                yield Assign(node, self.samples, copy_of=task)


@dataclass
class Timed(Strategy):
    """A strategy that moves the model halfway to the mean of the collected weights every `seconds`.

    Each new version is measured, evaluated and kept. Tasks start from the newest kept version.
    """

    seconds: float = 10.0
    samples: int = 8
    start: int | None = None
    round: list[UpdateId] = field(default_factory=list)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        match event:
            case Arrived(update):
                self.round.append(update.id)
            case AlarmFired() if self.round:
                yield Blend(dict.fromkeys(self.round, 0.5 / len(self.round)), measure=1)
                self.round.clear()
                yield Wake(view.now + self.seconds)
                return
            case AlarmFired():
                yield Wake(view.now + self.seconds)
            case Changed(version):
                yield Evaluate(version)
                if self.start is not None:
                    yield Release(self.start)
                self.start = version
                yield Keep(version)
            case Joined() if self.start is None:
                self.start = view.version
                yield Keep(view.version)
                yield Wake(view.now + self.seconds)
        if view.work_left:
            for node in view.idle:
                for _ in range(view.free(node)):
                    yield Assign(node, self.samples, "weights", version=self.start)
