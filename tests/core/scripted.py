"""A strategy that says what a test tells it to say, and remembers what it was told."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from oddlot.core.commands import Action, Assign, Command, Start
from oddlot.core.conductor import Conductor
from oddlot.core.events import Arrived, Evaluated, Event, Joined, Stimulus
from oddlot.core.ledger import Ledger
from oddlot.core.spans import samples_in
from oddlot.core.strategy import Strategy, View
from oddlot.core.tasks import Facts, Kind, Task

Answer = list[Command] | Callable[[View], list[Command]]


@dataclass
class Scripted(Strategy):
    """Answers the next event with the commands that were laid down for it, later ones with nothing."""

    answers: list[Answer] = field(default_factory=list)
    told: list[Event] = field(default_factory=list)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        self.told.append(event)
        answer = self.answers.pop(0) if self.answers else []
        return answer(view) if callable(answer) else answer


class Stage:
    """A conductor of a scripted strategy: `say` lays down commands, lets something happen and gives the actions."""

    def __init__(self, ledger: Ledger | None = None, in_flight: int = 1) -> None:
        self.strategy = Scripted()
        self.conductor = Conductor(self.strategy, ledger or Ledger(100), batch=8, in_flight=in_flight)

    def say(
        self, commands: Answer, event: Stimulus | None = None, now: float | None = None
    ) -> tuple[Action, ...]:
        self.strategy.answers[:] = [commands]
        when = self.conductor.now if now is None else now
        return self.conductor.handle(event or Evaluated(0, {}), when).actions

    def tell(self, event: Stimulus, now: float | None = None) -> list[Event]:
        """What the strategy is told of this; it says nothing."""
        self.strategy.told.clear()
        self.strategy.answers.clear()
        self.conductor.handle(event, self.conductor.now if now is None else now)
        return list(self.strategy.told)

    def actions(self, event: Stimulus, now: float | None = None) -> tuple[Action, ...]:
        """What is done about this; the strategy says nothing."""
        return self.say([], event, now)

    def start(self, node: str, samples: int = 8, kind: Kind = "gradient") -> Task:
        """A task for the worker, who joins if it is not there."""
        if node not in self.conductor.busy:
            self.tell(Joined(node))
        (action,) = self.say([Assign(node, samples, kind)])
        assert isinstance(action, Start)
        return action.task

    def answer(self, task: Task, samples: int | None = None) -> Arrived:
        samples = samples_in(task.spans) if samples is None else samples
        return Arrived(Facts(task.id, task.node, task.version, samples, task.kind))

    def arrived(self, node: str, kind: Kind = "gradient") -> Task:
        """A task whose update waits in the inbox."""
        task = self.start(node, kind=kind)
        self.tell(self.answer(task))
        return task
