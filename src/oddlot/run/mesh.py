"""Preparation of a run on a mesh: `prepared_mesh` selects the host class of the engine."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from oddlot.core.support.errors import UsageError
from oddlot.data.seeding import preserve_random_state
from oddlot.engines.base import OpenMesh, PeerProcesses
from oddlot.history.run_folder import RunFolder
from oddlot.run.hosts_local import LocalHosts
from oddlot.run.hosts_simulated import SimulatedHosts
from oddlot.run.mesh_folder import MeshEnded, has_reached
from oddlot.run.recipe import Recipe


@contextmanager
def prepared_mesh(
    recipe: Recipe, folder: RunFolder | None = None, resume: bool = False
) -> Iterator[SimulatedHosts | LocalHosts | MeshEnded]:
    """Yield a run on a mesh that is ready to start, and close it afterwards."""
    mesh = _mesh_of(recipe)
    is_memory = folder is not None and folder.checkpoints.startswith("memory:")
    if folder is not None and is_memory and isinstance(mesh, PeerProcesses):
        message = (
            f"{folder.place} is memory of this process, which the peers cannot read: use another location"
        )
        raise UsageError(message, "not_persistent", "checkpoints", url=folder.place)
    if folder is not None and resume:
        recipe = recipe.resuming(folder.settings().get("shards"))
    with ExitStack() as closing:
        closing.enter_context(preserve_random_state())
        if folder is not None and resume and has_reached(recipe, folder):
            yield MeshEnded(recipe, folder)
            return
        match mesh:
            case PeerProcesses():
                yield LocalHosts(recipe, mesh, closing, folder, resume)
            case _:
                yield SimulatedHosts(recipe, mesh, closing, folder, resume)


def _mesh_of(recipe: Recipe) -> PeerProcesses | OpenMesh:
    """Return the mesh of the engine. Raise UsageError if the engine has no mesh or computes nothing."""
    engine, name = recipe.engine, type(recipe.strategy).__name__
    if engine.mesh is None:
        message = (
            f"{name} runs on a mesh of peers, and the {engine.kind} engine has none: use Local or Simulated"
        )
        raise UsageError(message, "engine_without_mesh", "engine.kind", engine=engine.kind, strategy=name)
    if not engine.computes:
        message = "computes=False (--no-compute) has no weights, and peers of a mesh exchange them"
        raise UsageError(message, "mesh_without_compute", "engine")
    return engine.mesh
