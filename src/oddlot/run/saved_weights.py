"""Reading the weights of a run from its folder."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from os import PathLike
from typing import Literal, overload

from torch import Tensor, nn

from oddlot.checkpoint.best_writer import BestFile, best_files
from oddlot.checkpoint.format import Snapshot, newest
from oddlot.checkpoint.local_storage import read_tensors
from oddlot.checkpoint.storage import Storage, unreadable
from oddlot.checkpoint.tensor_files import parse_tensors
from oddlot.core.events import Evaluated
from oddlot.core.support.errors import CheckpointError, InvalidValue, UnknownName, UsageError
from oddlot.core.support.serialization import DAMAGED
from oddlot.data.seeding import preserve_random_state, seed_all
from oddlot.history.peer_logs import read_run_log
from oddlot.history.run_folder import STATE_DICT, RunFolder
from oddlot.history.run_outcome import FAILED, read_ending
from oddlot.history.segments import segments_of
from oddlot.model.state_dict import EXTRA, MISSING, TIED
from oddlot.run.best_weights import storages_of
from oddlot.run.result import Run
from oddlot.train.job import Job, made

Weights = Literal["last", "best", "ema"]
"""The last weights of a run, or the weights of its best evaluation (`keep_best`). With `ema_decay`, the last weights
are the moving average; `ema` requires one."""
MAX_NAMED = 3
TRIES = 3
"""Number of attempts to read the newest weights of a running process."""


@dataclass(frozen=True)
class SavedWeights:
    """Weights of a run, with the names of a state dict."""

    version: int
    tensors: dict[str, Tensor]
    missing: tuple[str, ...] = ()
    """Entries of the state dict that are not saved: parameters and buffers that training does not change."""
    metrics: Mapping[str, float] | None = None
    """Metrics of these weights. None if they are only in the log."""

    @classmethod
    def read(cls, folder: RunFolder, weights: str = "last") -> "SavedWeights":
        """Read weights of a run, ended or not. Raise UsageError or CheckpointError if the run does not have them."""
        _check_kind(weights)
        settings = folder.settings()  # raises CheckpointError if there is no run
        try:
            state = dict(settings.get(STATE_DICT, {}))
            tied, extra = dict(state.get(TIED, {})), set(state.get(EXTRA, ()))
            found = _retried(READERS[weights], folder)
            tensors = {name: tensor for name, tensor in found.tensors.items() if name not in extra}
            for name, own in tied.items():  # the model's file has one of the names
                if name in tensors:
                    tensors.setdefault(own, tensors[name])
            tensors |= {name: tensors[own] for name, own in tied.items() if own in tensors}
            missing = tuple(name for name in state.get(MISSING, ()) if name not in tensors)
        except DAMAGED as error:
            raise unreadable(str(folder.path), error, "the weights in ") from error
        return cls(found.version, tensors, missing, found.metrics)

    def check_complete(self, folder: RunFolder) -> None:
        """Raise CheckpointError if frozen parameters are not saved."""
        if self.missing:
            message = (
                f"the newest checkpoint of {folder.path} does not have the frozen parameters and buffers "
                f"{_named(self.missing)}: resume the run until it ends, or use oddlot.load(run, into=job)"
            )
            raise CheckpointError(
                message, "frozen_not_saved", path=str(folder.path), names=list(self.missing)
            )

    def metrics_in(self, folder: RunFolder) -> Mapping[str, float]:
        """Return the metrics of these weights. Empty if this version was not evaluated."""
        if self.metrics is not None:
            return self.metrics
        events = (record.event for record in read_run_log(folder))
        found = [one for one in events if isinstance(one, Evaluated) and one.version == self.version]
        return found[-1].metrics if found else {}


def _retried(read: Callable[[RunFolder], SavedWeights], folder: RunFolder) -> SavedWeights:
    """Read weights, again if a running process removes their file for a newer one."""
    for _ in range(TRIES - 1):
        with suppress(CheckpointError):
            return read(folder)
    return read(folder)


def _last(folder: RunFolder) -> SavedWeights:
    """Read the model of an ended run, or otherwise the newest checkpoint."""
    ending = read_ending(folder)
    if ending and folder.model.exists() and not ending["ended"].startswith(FAILED):
        metrics = dict(ending["metrics"]) if folder.is_mesh else None
        return SavedWeights(int(ending["versions"]), read_tensors(folder.model), metrics=metrics)
    snapshot = newest(folder.storage).load()
    return SavedWeights(snapshot.version, _tensors_in(snapshot))


def _tensors_in(snapshot: Snapshot) -> dict[str, Tensor]:
    """Return the tensors of the model in a checkpoint, by name: of the moving average, if there is one."""
    found = {}
    group = "average" if any(name.startswith("average/") for name in snapshot.tensors) else "weights"
    for entry in snapshot.layout["entries"]:
        section, shape = snapshot.tensors[f"{group}/{entry['section']}"], tuple(entry["shape"])
        found[str(entry["name"])] = section[entry["offset"] :][: prod(shape)].view(shape)
    return found


def _ema(folder: RunFolder) -> SavedWeights:
    """Read the moving average of the last weights."""
    if segments_of(folder.settings())[-1].get("ema_decay") is None:
        message = (
            f"{folder.path} has no moving average: train with Job(ema_decay=...), or use the last weights"
        )
        raise UsageError(message, "no_moving_average", "weights", path=str(folder.path))
    return _last(folder)


def _best(folder: RunFolder) -> SavedWeights:
    """Read the weights of the best evaluation."""
    found = [(one, storage) for storage in storages_of(folder) for one in _best_files(storage)]
    if not found:
        message = (
            f"{folder.path} has no best weights: train with keep_best=METRIC (--keep-best METRIC), or use the last "
            "weights"
        )
        raise UsageError(message, "no_best_weights", "weights", path=str(folder.path))
    file, storage = max(found, key=lambda pair: pair[0])
    try:
        data = storage.read(file.name)
        about, tensors = parse_tensors(data)
        return SavedWeights(file.version, tensors, metrics=dict(json.loads(about["metrics"])))
    except (OSError, *DAMAGED) as error:
        raise unreadable(storage.path(file.name), error) from error


def _best_files(storage: Storage) -> list[BestFile]:
    try:
        return best_files(storage)
    except OSError as error:
        raise unreadable(str(storage), error) from error


def _check_kind(weights: object) -> None:
    if weights not in READERS:
        raise UnknownName("weights", str(weights), READERS, key="weights")


READERS: dict[str, Callable[[RunFolder], SavedWeights]] = {"last": _last, "best": _best, "ema": _ema}
"""Functions that read each kind of weights."""
Source = Run | str | PathLike[str]
"""A run, or the path of its folder."""


@overload
def load(run: Source, weights: Weights = "last", into: None = None) -> dict[str, Tensor]: ...


@overload
def load(run: Source, weights: Weights = "last", *, into: Job | nn.Module) -> nn.Module: ...


def load(
    run: Source, weights: Weights = "last", into: Job | nn.Module | None = None
) -> dict[str, Tensor] | nn.Module:
    """Load the weights of a run, on the CPU.

    The run may be active, killed or ended. Without a final model, its newest complete checkpoint has the last weights.

    Args:
        run: Run folder, or the `Run` that `fit` returned.
        weights: `"last"`, `"best"` for the best evaluation of a run with `keep_best`, or `"ema"`. With `ema_decay`,
            the last weights are the moving average, which evaluations measure. `"ema"` requires one.
        into: The run's job, for a new model of it, or a module to load the weights into. A checkpoint does not have
            frozen parameters: they come from the module.

    Returns:
        The state dict or, with `into`, the module in evaluation mode.

    Raises:
        UsageError: The run has no best weights, or no moving average.
        CheckpointError: There is no run, its files are damaged, or its tensors are not those of the module. Without
            `into`, also if the newest checkpoint lacks frozen parameters.
    """
    _check_kind(weights)
    if isinstance(run, Run) and run.folder is None:
        return _in_memory(run, weights, into)
    if not isinstance(run, Run | str | PathLike):
        raise InvalidValue("run", run, "a run folder or the result of oddlot.fit")
    folder = RunFolder(run.folder if isinstance(run, Run) and run.folder else run)  # type: ignore[arg-type]
    saved = SavedWeights.read(folder, weights)
    if into is None:
        saved.check_complete(folder)
        return saved.tensors
    return _loaded(into, saved, str(folder.path), folder.settings().get("seed", 0))


def _in_memory(run: Run, weights: str, into: Job | nn.Module | None) -> dict[str, Tensor] | nn.Module:
    """Return the last weights of a run without a folder."""
    if weights == "best":
        message = "the run has no folder, which the best weights need: pass out=... and keep_best=... to fit"
        raise UsageError(message, "no_best_weights", "weights", path=None)
    if weights == "ema":
        message = 'the run has no folder, which weights="ema" needs: pass out=... to fit, or use run.model'
        raise UsageError(message, "no_moving_average", "weights", path=None)
    state = {name: each for name, each in run.model.state_dict().items() if isinstance(each, Tensor)}
    return (
        state if into is None else _loaded(into, SavedWeights(run.summary["versions"], state), "the run", 0)
    )


def _loaded(into: Job | nn.Module, saved: SavedWeights, where: str, seed: int) -> nn.Module:
    """Return the module with the saved weights. Raise CheckpointError if its tensors are others."""
    if isinstance(into, Job):
        with preserve_random_state():
            seed_all(seed)  # frozen parameters get the values that they had in the run
            model = made(into)
    elif isinstance(into, nn.Module):
        model = into
    else:
        raise InvalidValue("into", into, "an oddlot.Job or a torch.nn.Module")
    own = {name: each for name, each in model.state_dict().items() if isinstance(each, Tensor)}
    there = {own[name].data_ptr() for name in saved.tensors if name in own}  # tied tensors may be saved once
    absent = (name for name, each in own.items() if each.data_ptr() not in there and each.numel())
    different = [*(saved.tensors.keys() - own.keys()), *(set(absent) - set(saved.missing))]
    different += [
        name for name, each in saved.tensors.items() if name in own and own[name].shape != each.shape
    ]
    if different:
        names = _named(sorted(different))
        message = f"the weights in {where} are of another model: {names} differ. Pass the run's job or model"
        raise CheckpointError(message, "other_model", path=where, names=sorted(different))
    model.load_state_dict(saved.tensors, strict=False)
    return model.eval()


def _named(names: Sequence[str]) -> str:
    """Return the first few names as text."""
    return ", ".join(names[:MAX_NAMED]) + ", ..." * (len(names) > MAX_NAMED)
