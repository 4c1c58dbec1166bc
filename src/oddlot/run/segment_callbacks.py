"""Callbacks of a run that several calls of `fit` make, one for each segment."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from oddlot.core.records import Record
from oddlot.history.callback import Callback, RunProgress
from oddlot.history.goals import Goal


class AcrossSegments(Callback):
    """Calls a callback as for one run, although each segment starts and ends, and repeats the earlier records.

    `continues` returns whether another segment follows a segment that ended for this reason. `goal` is the goal of the
    complete run. Default: the goal of its first segment.
    """

    def __init__(
        self, callback: Callback, continues: Callable[[str], bool], goal: Goal | None = None
    ) -> None:
        self.callback, self.continues, self.goal = callback, continues, goal
        self.seen = 0
        self.has_started = False

    def __repr__(self) -> str:
        return repr(self.callback)

    def _whole(self, run: RunProgress) -> RunProgress:
        return run if self.goal is None else replace(run, goal=self.goal)

    def validate(self, metrics: Sequence[str]) -> None:
        self.callback.validate(metrics)

    def on_start(self, run: RunProgress) -> None:
        """Pass on the first start, and later only the records that were not seen."""
        missing, self.seen = run.earlier[self.seen :], len(run.earlier)
        if self.has_started:
            for record in missing:
                self.callback.on_record(self._whole(run), record)
            return
        self.has_started = True
        self.callback.on_start(self._whole(run))

    def on_record(self, run: RunProgress, record: Record) -> None:
        self.seen += 1
        self.callback.on_record(self._whole(run), record)

    def on_evaluation(self, run: RunProgress, version: int, metrics: Mapping[str, float]) -> None:
        self.callback.on_evaluation(self._whole(run), version, metrics)

    def on_checkpoint(self, run: RunProgress, version: int, path: str) -> None:
        self.callback.on_checkpoint(self._whole(run), version, path)

    def on_interrupt(self, run: RunProgress) -> None:
        self.callback.on_interrupt(self._whole(run))

    def on_end(self, run: RunProgress, ended: str) -> None:
        """Pass on the end, unless another segment follows."""
        if not self.continues(ended):
            self.callback.on_end(self._whole(run), ended)
