"""Writing the log, checkpoints, the model and the summary of a run into its folder."""

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from oddlot.checkpoint.background_writer import LONG_WRITE_SECONDS, BackgroundWriter, SharedWriter
from oddlot.checkpoint.format import MANIFEST, Snapshot, age, saved
from oddlot.checkpoint.storage import Storage
from oddlot.core.events import Resumed
from oddlot.core.records import HUB, HostState, Record
from oddlot.core.support.errors import CheckpointError, JobError
from oddlot.core.support.user_warnings import warn
from oddlot.core.tasks import NodeId
from oddlot.engines.host import Host
from oddlot.history.audit import prove_log
from oddlot.history.log import Log, surviving
from oddlot.history.metrics import Tally, resumed_after, take_into_account
from oddlot.history.run_folder import SUMMARY, RunFolder
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.model.state_dict import StateDict
from oddlot.run.best_weights import BestKeeper, evaluations, kept_files
from oddlot.run.recipe import Recipe
from oddlot.run.resume import SavedRun
from oddlot.run.signals import StopRequest
from oddlot.run.watchdogs import Divergence

HUNG_WRITE_SECONDS = 600.0
"""Seconds that a run waits, at its start and its end, for a checkpoint that is being written."""
LOCAL_LOOK_SECONDS, REMOTE_LOOK_SECONDS = 0.5, 15.0
"""Seconds between two looks for new checkpoints of peers."""
HURRY_SECONDS = 2.0
"""Seconds for the checkpoint that is being written when a second Ctrl-C ends the run."""


class Checkpoints:
    """Writes the checkpoints of a run in the background, and warns if a write fails."""

    def __init__(self, saver: BackgroundWriter, layout: Layout) -> None:
        self.saver, self.layout = saver, layout
        self._noted = ""

    @classmethod
    def of_peers(
        cls, recipe: Recipe, folder: RunFolder, layout: Layout, there: Collection[str], launch: str = ""
    ) -> "Checkpoints":
        """Return the checkpoints of a mesh. The lead writes them.

        `launch` identifies the processes that were started together. `there` are the names of earlier checkpoints,
        possibly of other launches.
        """
        keep, is_elsewhere = recipe.config.keep_checkpoints, folder.is_elsewhere
        logs, storage = folder.logs, folder.storage
        saver = SharedWriter(storage, logs, keep, copy_logs=is_elsewhere, launch=launch, there=there)
        return cls(saver, layout)

    def write(
        self, version: int, hosts: Mapping[NodeId, HostState], tensors: Mapping[str, Tensor], records: int = 0
    ) -> None:
        """Write a checkpoint of these hosts, unless another checkpoint is being written."""
        self.saver.warn_if_hung()
        self.warn()
        fingerprint, layout = self.layout.fingerprint, self.layout.to_json()
        self.saver.save(Snapshot(version, records, fingerprint, hosts, layout, dict(tensors)))

    def newly_completed(self) -> tuple[int, str] | None:
        """Return the version and path of the newest complete checkpoint. None if the last call returned it."""
        name = self.saver.completed
        if name == self._noted:
            return None
        self._noted = name
        return age(name)[1], self.saver.storage.path(name)

    def finish(self) -> None:
        """Wait for the checkpoint that is being written."""
        self.saver.wait(HUNG_WRITE_SECONDS)
        self.warn()

    def close(self) -> None:
        """Wait for the checkpoint that is being written, also if the run has failed."""
        self.saver.close(HUNG_WRITE_SECONDS)

    def warn(self) -> None:
        """Warn of each checkpoint that was not written."""
        for problem in self.saver.problems():
            warn(str(problem), problem.code, **problem.fields)


class FollowedCheckpoints:
    """Finds new checkpoints that other processes have completed, as the peers of a mesh do."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.seconds = LOCAL_LOOK_SECONDS if storage.is_local else REMOTE_LOOK_SECONDS
        """Seconds between two looks."""
        self._known = set(saved(storage))
        self._looked_at = 0.0

    def newly_completed(self, now: float) -> tuple[int, str] | None:
        """Return the version and path of the newest new checkpoint. None if there is none, or if it is too early."""
        if now - self._looked_at < self.seconds:
            return None
        self._looked_at, completed = now, list[str]()
        with suppress(OSError):  # the next look may succeed
            new = [name for name in saved(self.storage) if name not in self._known]
            completed = [name for name in new if MANIFEST in self.storage.names(name)]
        self._known.update(completed)
        return (age(completed[-1])[1], self.storage.path(completed[-1])) if completed else None


class Saving:
    """Writes the folder of a run with a hub during training. Without a folder, records are kept in memory.

    `snapshot` returns the current tensors. `divergence` raises JobError before weights that are not finite are saved.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder | None,
        host: Host,
        tally: Tally,
        layout: Layout,
        snapshot: Callable[[], Mapping[str, Any]],
        divergence: Divergence,
        stop: StopRequest,
    ) -> None:
        self.recipe, self.folder, self.host, self.tally = recipe, folder, host, tally
        self.layout, self.snapshot, self.divergence, self.stop = layout, snapshot, divergence, stop
        self.records: list[Record] = []
        self.earlier: list[Record] = []
        """Records of earlier processes of a resumed run."""
        self.log: Log | None = None
        self.checkpoints: Checkpoints | None = None
        self.best: BestKeeper | None = None
        """Keeper of the best weights. None without `keep_best`."""

    @property
    def saver(self) -> BackgroundWriter | None:
        """Return the writer of checkpoints, or None if the run has no folder."""
        return self.checkpoints.saver if self.checkpoints is not None else None

    @property
    def count(self) -> int:
        """Return the number of records."""
        return self.log.records if self.log else len(self.records)

    def open(
        self,
        begin: Callable[[RunFolder], None],
        past: SavedRun | None,
        now: float,
        closing: ExitStack,
        model: nn.Module,
    ) -> None:
        """Start or continue the log, after `begin` has written run.json.

        Records after the checkpoint `past` count as lost work.
        """
        closing.push(self._close)
        if self.folder is None:
            self.host.observers.append(self.records.append)
            return
        if past is not None:
            event = self._look_back(past, self.folder)
            self.folder.reopen()
        begin(self.folder)
        self.divergence.saver = self._saver(self.folder, past)
        self.checkpoints = Checkpoints(self.divergence.saver, self.layout)
        self._open_best(self.folder, past, model)
        self.log = Log(self.folder.log, self.host.conductor, len(past.logs[HUB]) if past else None)
        closing.callback(self.log.close)
        self.host.observers.append(self.log)
        if past is not None:
            self.host.observers.append(self.earlier.append)
            # The event may end a round, and observers need that record too.
            with past.readable():
                self.host.handle(event, now)
            self.host.observers.remove(self.earlier.append)
        self.checkpoint()

    def await_first(self) -> None:
        """Wait for the first checkpoint, while workers start. Raise JobError if it cannot be written."""
        if self.saver is None:
            return
        if not self.saver.wait(HUNG_WRITE_SECONDS):
            raise self.saver.hung
        for problem in self.saver.problems():
            message = str(problem).removesuffix("; the run continues")
            raise problem.with_message(f"{message}, then resume the run")

    def checkpoint(self) -> None:
        """Write a checkpoint in the background, after flushing the log.

        Does nothing while another checkpoint is being written.
        """
        if self.checkpoints is None or self.saver is None or self.log is None:
            return
        if self.best is not None:
            self.best.warn()
        self.log.check()  # a checkpoint needs the log
        self.divergence.check()
        conductor, records = self.host.conductor, self.log.records
        if self.folder is not None and self.saver.newest > self.tally.resumed_at:
            self.folder.forget_model()
        state = HostState(conductor.to_plain(), records)
        self.checkpoints.write(conductor.version, {HUB: state}, self.snapshot(), records)

    def flush(self) -> None:
        """Flush the log."""
        if self.log is not None:
            self.log.flush()

    def end(self, model: nn.Module, summary: dict[str, Any]) -> bool:
        """Write the last checkpoint, the model and the summary. Return False if Ctrl-C ended the wait for a write."""
        if self.folder is None or self.saver is None:
            return True
        written, waited = False, True
        try:
            written = self.saver.wait(LONG_WRITE_SECONDS if self.stop.signal else HUNG_WRITE_SECONDS)
        except KeyboardInterrupt:  # save the model even if the storage of checkpoints hangs
            self.stop.interrupt()
            waited = False
        if written:
            self.checkpoint()
        self.folder.write_model(model)
        self.folder.write(SUMMARY, summary)
        if self.best is not None:
            self.best.finish(HUNG_WRITE_SECONDS if written else HURRY_SECONDS)
        if written:
            self.saver.wait(HUNG_WRITE_SECONDS)
        for problem in self.saver.problems():
            warn(
                f"{str(problem).removesuffix('; the run continues')}. The model is saved, but the newest checkpoint "
                f"is of version {self.saver.newest:,}",
                problem.code,
                **problem.fields,
                newest=self.saver.newest,
            )
        return waited

    def end_failed(self, summary: Callable[[], dict[str, Any]]) -> None:
        """Save the state and the summary of a failed run, if possible."""
        with suppress(JobError, OSError):
            if self.saver is not None and self.tally.versions and self.host.settled:
                self.saver.wait()
                self.checkpoint()
                self.saver.wait()
        with suppress(JobError):
            self.flush()
            if self.folder is not None and self.log is not None:
                self.folder.write(SUMMARY, summary())

    def _look_back(self, past: SavedRun, folder: RunFolder) -> Resumed:
        """Return the event of the resume, with the lost work. Raise CheckpointError if the log is inconsistent."""
        self.earlier = surviving(past.logs[HUB], past.records[HUB])
        lost = surviving(past.logs[HUB])[len(self.earlier) :]
        take_into_account(self.tally, self.earlier, folder.log)
        proof = prove_log(folder.log, self.earlier, self.recipe.samples)
        if proof.faults:
            message = f"{folder.log} is damaged: {proof}. Restore the file from a copy"
            raise CheckpointError(message, "damaged_file", path=str(folder.log))
        event = resumed_after(past.records[HUB], self.tally, lost, folder.log)
        segment = self.recipe.new_segment if past.starts_segment else None
        return replace(event, settings=self.recipe.settings_anew, segment=segment)

    def _open_best(self, folder: RunFolder, past: SavedRun | None, model: nn.Module) -> None:
        """Start to keep the best weights. Remove files of work that a resume lost."""
        metric = self.recipe.config.keep_best
        history = evaluations(past.logs[HUB], past.records[HUB]) if past else {}
        files = kept_files(folder, history)
        if metric is None:
            return
        self.best = BestKeeper(metric, self.recipe.job.name, folder, StateDict(self.layout, model))
        self.best.resume(files, history)
        self.host.on_evaluated = self._offer_best

    def _offer_best(self, version: int, metrics: Mapping[str, float], weights: FlatBuffer) -> None:
        if self.best is not None and self.saver is not None:
            self.best.offer(version, metrics, weights, self.count, self.saver.kept_records)

    def _saver(self, folder: RunFolder, past: SavedRun | None) -> BackgroundWriter:
        keep = self.recipe.config.keep_checkpoints
        begun_from, there = (past.checkpoint, past.there) if past else (None, ())
        return BackgroundWriter(
            folder.storage,
            folder.logs,
            keep,
            copy_logs=folder.is_elsewhere,
            begun_from=begun_from,
            there=there,
        )

    def _close(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        timeout = HURRY_SECONDS if kind is KeyboardInterrupt or self.stop.signal else HUNG_WRITE_SECONDS
        if self.best is not None:
            self.best.finish(timeout)
        problems = self.saver.close(timeout) if self.saver is not None else []
        if isinstance(error, JobError) and error.code == "log_changed":
            return  # the error explains these problems
        for problem in problems:
            warn(str(problem).removesuffix("; the run continues"), problem.code, **problem.fields)
