"""Keeping the weights of the best evaluation of a run, for `keep_best`."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence

from oddlot.checkpoint.best_writer import (
    BestFile,
    BestWeights,
    BestWriter,
    best_files,
    not_written,
    remove_unfinished,
)
from oddlot.checkpoint.storage import Storage
from oddlot.core.events import Evaluated
from oddlot.core.records import Record
from oddlot.core.support.errors import UsageError
from oddlot.core.support.user_warnings import warn
from oddlot.core.version import __version__
from oddlot.history.best_metric import BestMetric
from oddlot.history.log import numbered
from oddlot.history.run_folder import RunFolder
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.model.state_dict import StateDict, copied
from oddlot.run.checks import measured
from oddlot.run.recipe import Recipe


class BestKeeper:
    """Writes the weights of each evaluation that is the best so far.

    The weights are in the run folder and, if the checkpoints are in another location, also there.
    """

    def __init__(self, metric: BestMetric, job: str, folder: RunFolder, state: StateDict) -> None:
        self.metric, self.job, self.folder, self.state = metric, job, folder, state
        self.writer = BestWriter(storages_of(folder))
        self.version = -1
        """Version of the best weights. -1: there are none."""
        self.metrics: Mapping[str, float] = {}
        """Metrics of the best weights."""

    @property
    def value(self) -> float | None:
        """Return the best value of the metric. None without any weights."""
        return self.metric.value(self.metrics)

    @property
    def summary(self) -> dict[str, object] | None:
        """Return the version and metrics of the best weights for the summary."""
        return {"version": self.version, "metrics": dict(self.metrics)} if self.metrics else None

    def resume(self, files: Iterable[BestFile], history: Mapping[int, Evaluated]) -> None:
        """Continue with the best of the evaluations in `history` that have weights in `files`."""
        best, files = None, sorted(files)
        for one in files:
            if self.metric.improves(history[one.record].metrics, self.value):
                best, self.version, self.metrics = one, one.version, history[one.record].metrics
        if best is not None:  # newer files are the best by another metric
            restore(self.folder, best, [one for one in files if one > best])

    def offer(
        self,
        version: int,
        metrics: Mapping[str, float],
        weights: FlatBuffer,
        record: int,
        checkpoints: Collection[int],
    ) -> None:
        """Write the weights of an evaluation if they are the best so far.

        Args:
            version: Evaluated version.
            metrics: Its metrics.
            weights: Its weights. They are copied.
            record: Number of the evaluation's record in the log.
            checkpoints: Numbers of records before the checkpoints that a run can be resumed from.
        """
        if not self.metric.improves(metrics, self.value):
            return
        self.version, self.metrics = version, dict(metrics)
        about = metadata(self.job, "best", version, metrics) | {"metric": str(self.metric)}
        tensors = copied(self.state.of(weights))
        self.writer.save(BestWeights(BestFile(record, version), tensors, about, checkpoints))

    def warn(self) -> None:
        """Warn of weights that could not be written."""
        for problem in self.writer.problems():
            warn(str(problem), problem.code, **problem.fields)

    def finish(self, seconds: float) -> None:
        """Wait at most `seconds` until all weights are written."""
        self.writer.wait(seconds)
        self.warn()


def check_keep_best(recipe: Recipe, folder: RunFolder | None) -> None:
    """Raise UsageError if the run cannot keep its best weights."""
    metric = recipe.config.keep_best
    if metric is None:
        return
    metric.check(measured(recipe.job, recipe.engine), "keep_best")
    if recipe.traits.mesh:
        name = type(recipe.strategy).__name__
        message = f"keep_best needs a run with a hub, and {name} runs on a mesh of peers: leave it out"
        raise UsageError(message, "best_without_hub", "keep_best", strategy=name)
    if folder is None:
        message = "keep_best needs a run folder: pass out=... (--out)"
        raise UsageError(message, "missing_setting", "keep_best", name="out")


def metadata(job: str, weights: str, version: int, metrics: Mapping[str, float]) -> dict[str, str]:
    """Return the metadata of a file with weights."""
    figures = json.dumps(dict(metrics))
    return {
        "oddlot": __version__,
        "job": job,
        "weights": weights,
        "version": str(version),
        "metrics": figures,
    }


def storages_of(folder: RunFolder) -> list[Storage]:
    """Return the storages of the best weights of a run."""
    return [Storage(folder.path), *([folder.storage] if folder.is_elsewhere else [])]


def evaluations(log: Sequence[Record], count: int) -> dict[int, Evaluated]:
    """Return the evaluations among the first `count` records, without lost work, by record number."""
    valid = numbered(log[:count])
    return {number: record.event for number, record in valid if isinstance(record.event, Evaluated)}


def kept_files(folder: RunFolder, history: Collection[int]) -> set[BestFile]:
    """Return the files with weights of these evaluations, and remove other and unfinished files.

    Warn if a storage cannot be read.
    """
    kept = set[BestFile]()
    for storage in storages_of(folder):
        try:
            remove_unfinished(storage)
            for one in best_files(storage):
                if one.record in history:
                    kept.add(one)
                else:
                    storage.remove(one.name)
        except OSError as error:
            _warn_of_storage(storage, error)
    return kept


def restore(folder: RunFolder, best: BestFile, newer: Iterable[BestFile]) -> None:
    """Copy a file to the storages that lack it, and remove `newer` files. Warn if a storage fails."""
    storages = storages_of(folder)
    for storage in storages:
        try:
            for one in newer:
                storage.remove(one.name)
            if best not in best_files(storage):
                source = next(one for one in storages if best in best_files(one))
                storage.write(best.name, [source.read(best.name)])
        except OSError as error:
            _warn_of_storage(storage, error)


def _warn_of_storage(storage: Storage, error: OSError) -> None:
    problem = not_written(storage, error)
    warn(str(problem), problem.code, **problem.fields)
