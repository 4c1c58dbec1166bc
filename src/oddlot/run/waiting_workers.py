"""Messages about workers that wait for others, because a robust rule needs more updates."""

import logging
from math import ceil

from oddlot.core.conductor import Conductor
from oddlot.core.events import Leaving, Lost
from oddlot.core.records import Record
from oddlot.core.support.errors import JobError
from oddlot.core.support.text import counted

logger = logging.getLogger(__name__)


class WaitingWorkers:
    """An observer that logs when the workers that are left begin to wait."""

    def __init__(self, conductor: Conductor) -> None:
        self.conductor = conductor
        self.waited = False

    def __call__(self, record: Record) -> None:
        """Log a message if a loss has left too few workers."""
        waits = bool(self.conductor.waiting)
        if waits and not self.waited and isinstance(record.event, Lost | Leaving):
            logger.warning("%s", self.message)
        self.waited = waits

    @property
    def message(self) -> str:
        """Why workers wait."""
        there = counted(len(self.conductor.waiting), "worker")
        needed = ceil(self.conductor.least_slots / self.conductor.in_flight)
        return f"{there} of the {needed} that `combine` needs are there, and wait until others join"

    def explained(self, error: JobError) -> JobError:
        """Return an error with the reason for which workers waited, if any did."""
        return error.with_message(f"{error}. {self.message}") if self.conductor.waiting else error
