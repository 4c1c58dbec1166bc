"""Records of logs, in short."""

from typing import Any

from oddlot.core import words as w
from oddlot.core.spans import Span


def start(task: str, *spans: tuple[int, int, int]) -> w.Start:
    """A task of these samples: epoch, start and stop. Its name begins with that of its worker."""
    return w.Start(w.Task(task, task.partition(":")[0], tuple(Span(*span) for span in spans), 0))


def arrived(update: str, samples: int, **facts: Any) -> w.Arrived:
    """The update of a task."""
    return w.Arrived(w.Facts(update, update.partition(":")[0], 0, samples, **facts))


def merged(now: float, update: str, samples: int, *then: w.Action) -> w.Record:
    """An update that is merged when it comes."""
    return w.Record(now, arrived(update, samples), (w.Step({update: 1.0}), *then))
