"""The base class of runs: inputs, metrics, observers and stop requests."""

from collections.abc import Sequence
from typing import Any

from oddlot.core.records import Record
from oddlot.engines.base import RunData
from oddlot.engines.host import Observer
from oddlot.history.folder_owner import make_room
from oddlot.history.metrics import Tally
from oddlot.history.run_folder import (
    ABOUT,
    EFFECTIVE_BATCH,
    ENGINE,
    HOSTS,
    ONLY_HUB,
    RUN,
    WORKER_LOGS,
    RunFolder,
)
from oddlot.history.segments import FIRST_VERSION, SEGMENTS, Segment
from oddlot.run.recipe import Recipe
from oddlot.run.signals import StopRequest
from oddlot.run.user_observers import safe_observers
from oddlot.run.watchdogs import warning_observers
from oddlot.train.job import layout_of


class RunControl:
    """The common part of runs with a hub and runs on a mesh.

    `where` names the process that makes the model in errors.
    """

    def __init__(self, recipe: Recipe, folder: RunFolder | None, where: str, *, resume: bool = False) -> None:
        self.folder, self.resume = folder, resume
        self.stop = StopRequest()
        self.stopped = ""
        """Reason why an observer stopped the run. Empty: no observer stopped it."""
        self.tally = Tally(recipe.samples)
        """The metrics of the complete run."""
        self.observers: list[Observer] = [self.tally, *warning_observers(recipe.job)]
        self.earlier: list[Record] = []
        """Records of earlier processes of a resumed run."""
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

    def observe(self, observers: Sequence[Observer]) -> None:
        """Add observers. They receive the records of earlier processes first, then new records, in the order of time.

        On a mesh of processes, the order is approximate. An observer may have three methods:

        - `begin(name, samples, goal)` is called first.
        - `replay(record)` receives the records of earlier processes.
        - `stopping()` is called on Ctrl-C.
        """
        self.observers += safe_observers(observers, self._stop, self.recipe, self.earlier)

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
        }
        folder.begin({**self.identity, **settings, **({EFFECTIVE_BATCH: str(batch)} if batch else {})})
