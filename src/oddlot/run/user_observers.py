"""Observers of users: exceptions become warnings, and `StopRun` ends the run."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from oddlot.core.records import Record
from oddlot.core.support.errors import short
from oddlot.core.support.user_code import trace_of
from oddlot.core.support.user_warnings import warn
from oddlot.engines.host import Observer
from oddlot.history.goals import Goal
from oddlot.run.recipe import Recipe


class StopRun(Exception):
    """Raise this in an observer to end the run.

    The run is evaluated, saved and returned, as if it had reached its goal. `Run.ended` contains the text, such as
    "stopped: no progress".
    """

    @property
    def ended(self) -> str:
        """Return why the run ended."""
        return f"stopped: {self}" if str(self) else "stopped"


class SafeObserver:
    """Wraps a user's observer. After an exception it shows one OddlotWarning and is not called again."""

    def __init__(self, observer: Observer, stop: Callable[[str], None]) -> None:
        self.observer = observer
        self.stop = stop
        self.failed = False

    def __call__(self, record: Record) -> None:
        self._call(self.observer, record)

    def begin(self, name: str, samples: int, goal: Goal) -> None:
        """Call the observer's `begin`, if it has one."""
        self._call(getattr(self.observer, "begin", _nothing), name, samples, goal)

    def replay(self, record: Record) -> None:
        """Pass a record of an earlier process to the observer's `replay` if it has one, or else to the observer."""
        self._call(getattr(self.observer, "replay", self.observer), record)

    def stopping(self) -> None:
        """Call the observer's `stopping` on Ctrl-C, if it has one."""
        self._call(getattr(self.observer, "stopping", _nothing))

    def _call(self, method: Callable[..., None], *arguments: Any) -> None:
        if self.failed:
            return
        try:
            method(*arguments)
        except StopRun as stop:
            self.stop(stop.ended)
        except Exception as error:  # noqa: BLE001 - an observer must never end the training
            self.failed = True
            reason = trace_of(error).rstrip()
            message = (
                f"the observer {short(self.observer)} raised an exception and is not called again: {reason}"
            )
            warn(message, "observer_failed", reason=reason)


def safe_observers(
    observers: Iterable[Observer], stop: Callable[[str], None], recipe: Recipe, earlier: Sequence[Record]
) -> list[SafeObserver]:
    """Return wrapped observers, after `begin` and the records of earlier processes were passed to them."""
    safe = [SafeObserver(observer, stop) for observer in observers]
    for one in safe:
        one.begin(recipe.job.name, recipe.samples, recipe.goal)
        for record in earlier:
            one.replay(record)
    return safe


def announce_stop(observers: Iterable[Observer]) -> None:
    """Call `stopping` of each observer that has it, after Ctrl-C."""
    for observer in observers:
        getattr(observer, "stopping", _nothing)()


def _nothing(*_: Any) -> None:
    pass
