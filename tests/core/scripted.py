"""A scripted strategy for tests. It returns given commands and records the events that it receives."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from oddlot.core.commands import Action, Assign, Command, Start
from oddlot.core.conductor import Conductor
from oddlot.core.events import Arrived, Evaluated, Event, Joined, Stimulus
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.sample_spans import samples_in
from oddlot.core.strategy import Strategy, View
from oddlot.core.tasks import Facts, Kind, Task

Answer = list[Command] | Callable[[View], list[Command]]


@dataclass
class Scripted(Strategy):
    """A strategy with scripted commands for the next events, and no commands after them."""

    answers: list[Answer] = field(default_factory=list)
    message: list[Event] = field(default_factory=list)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        self.message.append(event)
        answer = self.answers.pop(0) if self.answers else []
        return answer(view) if callable(answer) else answer


class Stage:
    """A conductor with a scripted strategy.

    `say` sets the commands for an event, passes the event to the conductor and returns the actions.
    """

    def __init__(self, ledger: SampleLedger | None = None, in_flight: int = 1, least_slots: int = 1) -> None:
        self.strategy = Scripted()
        self.conductor = Conductor(
            self.strategy, ledger or SampleLedger(100), batch=8, in_flight=in_flight, least_slots=least_slots
        )

    def say(
        self, commands: Answer, event: Stimulus | None = None, now: float | None = None
    ) -> tuple[Action, ...]:
        self.strategy.answers[:] = [commands]
        when = self.conductor.now if now is None else now
        return self.conductor.handle(event or Evaluated(0, {}), when).actions

    def tell(self, event: Stimulus, now: float | None = None) -> list[Event]:
        """Handle an event without a command of the strategy. Return the events that the strategy receives."""
        self.strategy.message.clear()
        self.strategy.answers.clear()
        self.conductor.handle(event, self.conductor.now if now is None else now)
        return list(self.strategy.message)

    def actions(self, event: Stimulus, now: float | None = None) -> tuple[Action, ...]:
        """Handle an event without a command of the strategy. Return the actions."""
        return self.say([], event, now)

    def start(self, node: str, samples: int = 8, kind: Kind = "gradient") -> Task:
        """Assign a task to a worker. If necessary, the worker joins first."""
        if node not in self.conductor.busy:
            self.tell(Joined(node))
        (action,) = self.say([Assign(node, samples, kind)])
        assert isinstance(action, Start)
        return action.task

    def answer(self, task: Task, samples: int | None = None) -> Arrived:
        samples = samples_in(task.spans) if samples is None else samples
        return Arrived(Facts(task.id, task.node, task.version, samples, task.kind))

    def arrived(self, node: str, kind: Kind = "gradient") -> Task:
        """Return a task with its update in the inbox."""
        task = self.start(node, kind=kind)
        self.tell(self.answer(task))
        return task
