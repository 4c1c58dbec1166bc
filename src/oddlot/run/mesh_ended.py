"""A run on a mesh that has ended already, and has nothing more to do."""

from collections.abc import Sequence

from torch import nn

from oddlot.engines.host import Observer
from oddlot.history.metrics import tally_of
from oddlot.history.outcome import read_ending
from oddlot.history.peer_logs import read_run_log
from oddlot.history.run_folder import RunFolder
from oddlot.run.mesh_folder import read_average
from oddlot.run.result import Run
from oddlot.run.signals import StopRequest
from oddlot.run.spec import Recipe
from oddlot.run.user_observers import safe_observers
from oddlot.train.flat_buffer import Layout


def has_reached(recipe: Recipe, folder: RunFolder) -> bool:
    """Whether the run in the folder has ended by this goal."""
    ended = read_ending(folder).get("ended") if folder.model.exists() else None
    return ended in {str(term) for term in recipe.goal.terms}


def ended_run(recipe: Recipe, folder: RunFolder, model: nn.Module) -> Run:
    """Return the run in the folder, which has ended. `model` gets its weights."""
    summary = read_ending(folder) | {"run_dir": str(folder.path)}
    read_average(folder, model)
    records = read_run_log(folder)
    history = tally_of(records, recipe.samples).quality.history
    return Run(model, summary, history, summary["ended"], folder.path, records)


class MeshEnded:
    """What `fit` runs when the goal was reached before: it starts no peer."""

    def __init__(self, recipe: Recipe, folder: RunFolder) -> None:
        self.recipe, self.folder, self.stop = recipe, folder, StopRequest()
        self.model = recipe.new_model("the launcher")
        folder.check_settings(recipe.identity(Layout.from_module(self.model, recipe.job.as_buffers)))

    def observe(self, observers: Sequence[Observer]) -> None:
        """Pass the records of the run to observers."""
        safe_observers(observers, lambda _: None, self.recipe, read_run_log(self.folder))

    def run(self) -> Run:
        """Return the run as it has ended."""
        return ended_run(self.recipe, self.folder, self.model)
