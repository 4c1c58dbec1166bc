"""A deadline for every task: what is done by then is handed over."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf

from oddlot.core.commands import Assign, Cancel, Command, HandOver, Wake
from oddlot.core.events import Arrived, Cancelled, Event
from oddlot.core.strategy import STATE, Traits, View
from oddlot.core.strategy_wrapper import Wrapper
from oddlot.core.tasks import TaskId
from oddlot.core.validation import AboveZero


@dataclass
class Deadline(Wrapper):
    """As the strategy inside, but a task that takes longer than `seconds` ends with the minibatch that its worker
    computes then: what is done is handed over, and the rest of its samples goes back.

    Give tasks of several minibatches. A mean over a prefix of samples in random order has the expectation of a mean
    over all of them, and counts in proportion to its length. Everybody does a minibatch, however slow: who is always
    slow brings less, and is not left out. A worker that says nothing at all is found as without this.

    Paper: Ferdinand, Al-Lawati, Draper, Nokleby, "Anytime Minibatch: Exploiting Stragglers in Online Distributed
    Optimization" (ICLR 2019), section 3.
    """

    seconds: AboveZero = 1.0
    """from when a task is given out"""
    hurried: dict[TaskId, bool] = field(default_factory=dict)
    """state: open tasks whose time is up"""
    alarm: float = field(default=0.0, metadata=STATE)
    """state: when the next one's is, in seconds on the run's clock"""

    def traits(self, batch_size: int) -> Traits:
        """A worker whose time is up hands over what it has."""
        return replace(super().traits(batch_size), hands_over=True)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """What the strategy inside says, and an end for what has taken too long."""
        if isinstance(event, Arrived | Cancelled):
            self.hurried.pop(event.task if isinstance(event, Cancelled) else event.update.id, None)
        commands = list(self.inner.on(event, view))
        yield from commands
        over = {command.task for command in commands if isinstance(command, Cancel)}
        due = view.now + self.seconds if any(isinstance(command, Assign) for command in commands) else inf
        for task in view.tasks:  # the oldest first
            if (ends := view.since(task) + self.seconds) > view.now:
                due = ends
                break
            if task not in over and task not in self.hurried:
                self.hurried[task] = True
                yield HandOver(task)
        if len(self.hurried) > 2 * (len(view.tasks) + len(view.nodes)):  # others ended without a word
            self.hurried = {task: True for task in self.hurried if task in view.tasks}
        if due < inf and not view.now < self.alarm <= due:
            self.alarm = due
            yield Wake(due)
