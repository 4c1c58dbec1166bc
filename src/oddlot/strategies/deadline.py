"""A deadline for every task: what is done by then is handed over."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from oddlot.core.checks import AboveZero
from oddlot.core.strategy import View
from oddlot.core.words import Assign, Cancel, Command, Event, HandOver, TaskId, Wake
from oddlot.core.wrapper import Inner, Wrapper


@dataclass
class Deadline(Wrapper[Inner]):
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
    hurried: list[TaskId] = field(default_factory=list)
    """state: open tasks whose time is up"""

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """What the strategy inside says, and an end for what has taken too long."""
        commands = list(self.inner.on(event, view))
        yield from commands
        if any(isinstance(command, Assign) for command in commands):
            yield Wake(view.now + self.seconds)
        over = {command.task for command in commands if isinstance(command, Cancel)}
        self.hurried = [task for task in self.hurried if task in view.tasks and task not in over]
        late = [task for task in view.tasks if view.since(task) + self.seconds <= view.now]
        for task in late:
            if task not in over and task not in self.hurried:
                self.hurried.append(task)
                yield HandOver(task)
