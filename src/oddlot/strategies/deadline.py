"""A deadline for every task. At its deadline, the worker hands over the finished part."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf
from typing import ClassVar

from oddlot.core.commands import Assign, Cancel, Command, HandOver, Wake
from oddlot.core.events import Arrived, Cancelled, Event
from oddlot.core.strategy import STATE, Traits, View
from oddlot.core.strategy_wrapper import StrategyWrapper
from oddlot.core.support.validation import AboveZero
from oddlot.core.tasks import TaskId


@dataclass
class Deadline(StrategyWrapper):
    """Limit each task of the inner strategy to `seconds`, and merge the finished part.

    The other samples are assigned again. Use tasks of several minibatches. A worker finishes the minibatch that it
    computes at the deadline, and computes at least one, so slow workers contribute too. A partial update is weighted by
    its samples. It is unbiased, because samples are in random order.

    Paper: Ferdinand, Al-Lawati, Draper, Nokleby, "Anytime Minibatch: Exploiting Stragglers in Online Distributed
    Optimization" (ICLR 2019), section 3.
    """

    keeps_exact: ClassVar[bool] = True

    seconds: AboveZero = 1.0
    """Deadline of each task, in seconds after it is assigned."""
    hurried: dict[TaskId, bool] = field(default_factory=dict)
    """State: open tasks past their deadline."""
    alarm: float = field(default=0.0, metadata=STATE)
    """State: next deadline, in seconds since the start of the run."""

    def traits(self, batch_size: int) -> Traits:
        """Return the inner strategy's traits. Workers hand over partial results."""
        return replace(super().traits(batch_size), hands_over=True)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Return the inner strategy's commands, and end tasks past their deadline."""
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
        if len(self.hurried) > 2 * (len(view.tasks) + len(view.nodes)):  # forget tasks of lost workers
            self.hurried = {task: True for task in self.hurried if task in view.tasks}
        if due < inf and not view.now < self.alarm <= due:
            self.alarm = due
            yield Wake(due)
