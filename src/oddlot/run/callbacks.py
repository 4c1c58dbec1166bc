"""The callbacks of a run: exceptions become warnings, and `StopRun` ends the run."""

from collections.abc import Callable, Iterable
from typing import Any

from oddlot.core.events import Evaluated
from oddlot.core.records import Record
from oddlot.core.support.errors import short
from oddlot.core.support.user_code import trace_of
from oddlot.core.support.user_warnings import warn
from oddlot.history.callback import Callback, RecordFunction, RunProgress, StopRun, as_callback


class Callbacks:
    """Calls all callbacks of a run. `stop` is called with the reason if one of them ends the run."""

    def __init__(
        self, callbacks: Iterable[Callback | RecordFunction], run: RunProgress, stop: Callable[[str], None]
    ) -> None:
        self.run = run
        self.guarded = [GuardedCallback(as_callback(one), stop) for one in callbacks]

    def __call__(self, record: Record) -> None:
        """Pass on a record, and its metrics if it is an evaluation."""
        for one in self.guarded:
            one.call("on_record", self.run, record)
            if isinstance(event := record.event, Evaluated):
                one.call("on_evaluation", self.run, event.version, event.metrics)

    @property
    def need_checkpoints(self) -> bool:
        """Whether a callback has its own `on_checkpoint`."""
        return any(type(one.callback).on_checkpoint is not Callback.on_checkpoint for one in self.guarded)

    def start(self) -> None:
        """Pass on the start of the run."""
        self._call_all("on_start")

    def checkpoint(self, version: int, path: str) -> None:
        """Pass on a complete checkpoint."""
        self._call_all("on_checkpoint", version, path)

    def interrupt(self) -> None:
        """Pass on Ctrl-C."""
        self._call_all("on_interrupt")

    def end(self, ended: str) -> None:
        """Pass on the end of the run."""
        self._call_all("on_end", ended)

    def _call_all(self, method: str, *arguments: Any) -> None:
        for one in self.guarded:
            one.call(method, self.run, *arguments)


class GuardedCallback:
    """Calls the methods of a callback. After an exception it shows one OddlotWarning and calls no more."""

    def __init__(self, callback: Callback, stop: Callable[[str], None]) -> None:
        self.callback, self.stop = callback, stop
        self.failed = False

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method."""
        if self.failed:
            return
        try:
            getattr(self.callback, method)(*arguments)
        except StopRun as stop:
            self.stop(stop.ended)
        except Exception as error:  # noqa: BLE001 - a callback must never end the training
            self.failed = True
            reason = trace_of(error).rstrip()
            message = (
                f"the callback {short(self.callback)} raised an exception and is not called again: {reason}"
            )
            warn(message, "callback_failed", reason=reason)
