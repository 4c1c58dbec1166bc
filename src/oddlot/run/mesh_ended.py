"""A run on a mesh that has ended already, and has nothing more to do."""

from torch import nn

from oddlot.history.metrics import tally_of
from oddlot.history.outcome import read_ending
from oddlot.history.peer_logs import read_run_log
from oddlot.history.run_folder import RunFolder
from oddlot.run.control import RunControl
from oddlot.run.mesh_folder import read_average
from oddlot.run.result import Run
from oddlot.run.spec import Recipe


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


class MeshEnded(RunControl):
    """What `fit` runs when the goal was reached before: it starts no peer."""

    folder: RunFolder

    def __init__(self, recipe: Recipe, folder: RunFolder) -> None:
        super().__init__(recipe, folder, "the launcher", resume=True)
        folder.check_settings(self.identity)
        self.earlier = read_run_log(folder)

    def run(self) -> Run:
        """Return the run as it has ended."""
        return ended_run(self.recipe, self.folder, self.model)
