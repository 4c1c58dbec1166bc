"""Users' observers: one that raises is reported and does not cost the model, and `StopRun` ends the run."""

from collections.abc import Callable
from typing import Any

from oddlot.core.errors import short
from oddlot.core.records import Record
from oddlot.core.user_code import trace_of
from oddlot.core.user_warnings import warn
from oddlot.engines.host import Observer


class StopRun(Exception):
    """Raise this in an observer to end the run: it is evaluated and saved, and `fit` returns it, as at its goal.

    The text is in `Run.ended`, such as "stopped: no progress".
    """

    @property
    def ended(self) -> str:
        """Why the run has ended."""
        return f"stopped: {self}" if str(self) else "stopped"


class SafeObserver:
    """An observer of the user's. One that raises is reported once, by an OddlotWarning, and is not called again."""

    def __init__(self, observer: Observer, stop: Callable[[str], None]) -> None:
        self.observer = observer
        self.stop = stop
        self.failed = False

    def __call__(self, record: Record) -> None:
        self._call(self.observer, record)

    def begin(self, recipe: Any) -> None:
        """Show it what is trained, if it has a method for that."""
        self._call(getattr(self.observer, "begin", _nothing), recipe)

    def replay(self, record: Record) -> None:
        """Show it what a resumed run had done before, with its `replay` if it has that."""
        self._call(getattr(self.observer, "replay", self.observer), record)

    def stopping(self) -> None:
        """Tell it of a Ctrl-C, if it has a method for that."""
        self._call(getattr(self.observer, "stopping", _nothing))

    def _call(self, method: Callable[..., None], *arguments: Any) -> None:
        if self.failed:
            return
        try:
            method(*arguments)
        except StopRun as stop:
            self.stop(stop.ended)
        except Exception as error:  # noqa: BLE001 - whatever it is, the model must not be lost by it
            self.failed = True
            reason = trace_of(error).rstrip()
            told = f"the observer {short(self.observer)} raised, and is not called again: {reason}"
            warn(told, "observer_failed", reason=reason)


def _nothing(*_: Any) -> None:
    pass
