"""Records of logs, in short."""

from typing import Any

from oddlot.core.commands import Action, Start, Step
from oddlot.core.events import Arrived
from oddlot.core.records import Record
from oddlot.core.spans import Span
from oddlot.core.tasks import Facts, Task


def start(task: str, *spans: tuple[int, int, int]) -> Start:
    """A task of these samples: epoch, start and stop. Its name begins with that of its worker."""
    return Start(Task(task, task.partition(":")[0], tuple(Span(*span) for span in spans), 0))


def arrived(update: str, samples: int, **facts: Any) -> Arrived:
    """The update of a task."""
    return Arrived(Facts(update, update.partition(":")[0], 0, samples, **facts))


def merged(now: float, update: str, samples: int, *then: Action) -> Record:
    """An update that is merged when it comes."""
    return Record(now, arrived(update, samples), (Step({update: 1.0}), *then))
