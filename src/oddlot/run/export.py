"""Exporting the weights of a run into a file that loads without oddlot."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from oddlot.checkpoint.local_storage import naming_path
from oddlot.checkpoint.storage import Storage
from oddlot.checkpoint.tensor_files import read_metadata, tensor_file
from oddlot.core.support.errors import UsageError
from oddlot.core.support.serialization import DAMAGED
from oddlot.history.run_folder import RunFolder
from oddlot.run.best_weights import metadata
from oddlot.run.saved_weights import SavedWeights


@dataclass(frozen=True)
class Export:
    """An exported file."""

    path: Path
    version: int
    metrics: Mapping[str, float]
    tensors: int
    """Number of tensors."""
    bytes: int
    """Size of the file."""


def export(run: str | PathLike[str], out: str | PathLike[str] | None = None, weights: str = "last") -> Export:
    """Write the weights of a run as a safetensors file: `model.load_state_dict(safetensors.torch.load_file(out))`.

    Tied tensors are written under each of their names. Version and metrics are in the metadata. The default of `out` is
    `RUN-WEIGHTS.safetensors` in the current folder. Raise UsageError if `out` has other data, and otherwise as `load`.
    """
    folder = RunFolder(run)
    path = Path(f"{folder.path.resolve().name}-{weights}.safetensors" if out is None else out).expanduser()
    _check_place(path)
    saved = SavedWeights.read(folder, weights)
    saved.check_complete(folder)
    metrics, tensors = saved.metrics_in(folder), dict(sorted(saved.tensors.items()))
    about = metadata(str(folder.settings()["job"]), weights, saved.version, metrics)
    with naming_path(path):
        size = Storage(path.absolute().parent).write(path.name, tensor_file(tensors, about))["bytes"]
    return Export(path, saved.version, metrics, len(saved.tensors), size)


def _check_place(path: Path) -> None:
    """Raise UsageError if the file would be in a missing folder, or would overwrite data of another origin."""
    if not path.absolute().parent.is_dir():
        message = f"cannot write {path}: the folder {path.parent} does not exist"
        raise UsageError(message, "missing_folder", path=str(path), folder=str(path.parent))
    if path.is_dir():
        message = f"cannot write {path}: it is a folder. Name a file"
        raise UsageError(message, "not_a_file", path=str(path))
    if path.exists() and not _is_ours(path):
        message = f"{path} exists and was not written by `oddlot export`. Name another file"
        raise UsageError(message, "not_an_export", path=str(path))


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return "oddlot" in read_metadata(file)
    except (OSError, *DAMAGED):
        return False
