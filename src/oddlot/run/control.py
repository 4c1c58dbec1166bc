"""The base class of runs: inputs, metrics, observers, callbacks and stop requests."""

from collections.abc import Sequence
from typing import Any

from oddlot.core.records import Record
from oddlot.engines.base import RunData
from oddlot.engines.host import Observer
from oddlot.history.callback import Callback, RecordFunction, RunProgress
from oddlot.history.folder_owner import make_room
from oddlot.history.metrics import Tally
from oddlot.history.run_folder import (
    ABOUT,
    EFFECTIVE_BATCH,
    ENGINE,
    HOSTS,
    ONLY_HUB,
    RUN,
    STATE_DICT,
    WORKER_LOGS,
    RunFolder,
)
from oddlot.history.segments import FIRST_VERSION, SEGMENTS, Segment
from oddlot.model.state_dict import StateDict
from oddlot.run.callbacks import Callbacks
from oddlot.run.recipe import Recipe
from oddlot.run.signals import StopRequest
from oddlot.run.watchdogs import warning_observers
from oddlot.train.job import layout_of


class RunControl:
    """The common part of runs with a hub and runs on a mesh.

    `where` names the process that makes the model in errors.
    """

    def __init__(self, recipe: Recipe, folder: RunFolder | None, where: str, *, resume: bool = False) -> None:
        self.recipe, self.folder, self.resume = recipe, folder, resume
        self.stop = StopRequest()
        self.stopped = ""
        """Reason why a callback stopped the run. Empty: no callback stopped it."""
        self.tally = Tally(recipe.samples)
        """The metrics of the complete run."""
        self.observers: list[Observer] = [self.tally, *warning_observers(recipe.job)]
        self.earlier: list[Record] = []
        """Records of earlier processes of a resumed run."""
        self.is_kept = folder is not None
        """Whether the folder remains after the run."""
        self.callbacks = self._callbacks(())
        self.model = recipe.new_model(where)
        self.recipe = recipe = recipe.resolved(self.model)
        self.layout = layout_of(recipe.job, self.model)
        self.identity = recipe.identity(self.layout)
        self.segments: list[Segment] = [{FIRST_VERSION: 0, **recipe.segment(self.layout)}]
        """The segments of the run, the current one last."""

    @property
    def run_data(self) -> RunData:
        """Return the data that an engine needs."""
        logs = self.folder.path / WORKER_LOGS if self.folder else None
        return self.recipe.run_data(self.layout, self.model, logs)

    def start_callbacks(self, callbacks: Sequence[Callback | RecordFunction]) -> None:
        """Call `on_start` of these callbacks, and pass all later records to them, in the order of time.

        On a mesh of processes, the order is approximate.
        """
        self.callbacks = self._callbacks(callbacks)
        self.callbacks.start()
        self.observers.append(self.callbacks)

    def _callbacks(self, callbacks: Sequence[Callback | RecordFunction]) -> Callbacks:
        path = self.folder.path if self.folder and self.is_kept else None
        run = RunProgress(self.recipe.job.name, self.recipe.goal, path, self.earlier, self.tally)
        return Callbacks(callbacks, run, self._stop)

    def announce_checkpoint(self, completed: tuple[int, str] | None) -> None:
        """Call `on_checkpoint` with the version and path of a checkpoint, unless it is None."""
        if completed is not None:
            self.callbacks.checkpoint(*completed)

    def _stop(self, why: str) -> None:
        self.stopped = self.stopped or why

    def begin_folder(self, folder: RunFolder, *, is_new: bool) -> None:
        """Write run.json. A resumed run keeps its `about` unless you pass another. A new run removes older files."""
        recipe, engine, batch = self.recipe, self.recipe.engine, self.recipe.effective_batch
        about = dict(recipe.config.about) or (folder.about if self.resume else {})
        if is_new:
            make_room(folder)
        settings: dict[str, Any] = {
            HOSTS: list(engine.names) if recipe.traits.mesh else ONLY_HUB,
            ENGINE: {"kind": engine.kind, "workers": engine.max_workers, "in_flight": recipe.in_flight},
            RUN: recipe.config.plain(),
            ABOUT: about,
            SEGMENTS: self.segments,
            STATE_DICT: StateDict(self.layout, self.model).differences,
        }
        folder.begin({**self.identity, **settings, **({EFFECTIVE_BATCH: str(batch)} if batch else {})})
