"""One line of the log."""

from dataclasses import dataclass

from oddlot.core.commands import Action
from oddlot.core.events import Stimulus


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the log: what happened when, and what was decided."""

    now: float
    event: Stimulus
    actions: tuple[Action, ...] = ()
    remark: str = ""
    """`echo` marks an answer that came too late to count"""
