"""Short functions that create records of logs."""

from typing import Any

from oddlot.core.commands import Action, Start, Step
from oddlot.core.events import Arrived
from oddlot.core.records import Record
from oddlot.core.sample_spans import Span
from oddlot.core.tasks import Facts, Task


def start(task: str, *spans: tuple[int, int, int]) -> Start:
    """Return the start of a task with these spans (epoch, start, stop). The task's name starts with its worker."""
    return Start(Task(task, task.partition(":")[0], tuple(Span(*span) for span in spans), 0))


def arrived(update: str, samples: int, **facts: Any) -> Arrived:
    """Return the arrival of the update of a task."""
    return Arrived(Facts(update, update.partition(":")[0], 0, samples, **facts))


def merged(now: float, update: str, samples: int, *then: Action) -> Record:
    """Return the record of an update that is merged when it arrives."""
    return Record(now, arrived(update, samples), (Step({update: 1.0}), *then))
