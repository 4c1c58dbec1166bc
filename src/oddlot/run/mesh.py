"""A run on a mesh, on any engine that has one."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from oddlot.core.errors import UsageError
from oddlot.engines.local.config import Local
from oddlot.engines.simulated.config import Simulated
from oddlot.history.run_folder import RunFolder
from oddlot.run.mesh_ended import MeshEnded, has_reached
from oddlot.run.mesh_local import MeshLocal
from oddlot.run.mesh_simulation import MeshSimulation
from oddlot.run.spec import Recipe
from oddlot.train.seeding import kept_chance


@contextmanager
def prepared_mesh(
    recipe: Recipe, folder: RunFolder | None = None, resume: bool = False
) -> Iterator[MeshSimulation | MeshLocal | MeshEnded]:
    """Yield a run on a mesh that is ready, and close it afterwards."""
    if folder is not None and folder.checkpoints.startswith("memory:") and isinstance(recipe.engine, Local):
        told = f"{folder.place} is memory of this process, which the peers cannot read: use another location"
        raise UsageError(told, "not_persistent", "checkpoints", url=folder.place)
    if folder is not None and resume:
        recipe = recipe.resuming(folder.settings().get("shards"))
    with ExitStack() as closing:
        closing.enter_context(kept_chance())
        if folder is not None and resume and has_reached(recipe, folder):
            yield MeshEnded(recipe, folder)
            return
        match recipe.engine:
            case Simulated():
                yield MeshSimulation(recipe, closing, folder, resume)
            case Local():
                yield MeshLocal(recipe, closing, folder, resume)
            case engine:
                name = type(recipe.strategy).__name__
                told = f"{name} runs on a mesh of peers, and the {engine.kind} engine has none: use Local or Simulated"
                raise UsageError(
                    told, "engine_without_mesh", "engine.kind", engine=engine.kind, strategy=name
                )
