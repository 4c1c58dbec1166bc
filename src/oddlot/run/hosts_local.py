"""A run on a mesh of local processes: it starts the peers, reads their logs and returns the result."""

import tempfile
from contextlib import ExitStack, suppress
from dataclasses import replace
from math import inf

from oddlot.core.support.errors import JobError
from oddlot.core.tasks import NodeId
from oddlot.engines.base import PeerProcesses
from oddlot.engines.local.fork_client import ForkClient
from oddlot.engines.mesh.launcher import Launcher
from oddlot.engines.processes.process_setup import ProcessSetup
from oddlot.faults.injector import MeshFaults
from oddlot.history.folder_lock import note_holder
from oddlot.history.peer_logs import PeerLogs
from oddlot.history.run_folder import PEERS, RunFolder
from oddlot.history.run_outcome import read_ending
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.run.control import RunControl
from oddlot.run.mesh_folder import ended_run, make_peers_folder, warn_of_ending, write_failure
from oddlot.run.mesh_resume import continue_mesh
from oddlot.run.peer_process import PeerProcessSetup
from oddlot.run.peer_share import MeshStart
from oddlot.run.recipe import Recipe, rows_named
from oddlot.run.result import Run
from oddlot.run.saving import FollowedCheckpoints

END_SECONDS = 30.0
"""Seconds until peers are killed after the model is saved."""


class LocalHosts(RunControl):
    """A run on a mesh of local processes, as `Training` is a run with a hub."""

    folder: RunFolder

    def __init__(
        self,
        recipe: Recipe,
        processes: PeerProcesses,
        closing: ExitStack,
        folder: RunFolder | None = None,
        resume: bool = False,
    ) -> None:
        fork_server = processes.begin(closing)
        is_kept = folder is not None
        if folder is None:
            folder = RunFolder(closing.enter_context(tempfile.TemporaryDirectory(prefix="oddlot-")))
        super().__init__(recipe, folder, "the launcher", resume=resume)
        recipe = self.recipe
        self.is_kept = is_kept
        self.noted: list[int] = []
        names = recipe.engine.names
        self.past = continue_mesh(recipe, folder, self.layout, names) if resume else None
        self.begin_folder(folder, is_new=self.past is None)
        make_peers_folder(folder)
        self.logs = PeerLogs(folder)
        self.earlier = self.past.earlier if self.past else []
        self.logs.skip(self.earlier)
        for record in self.earlier:
            self.tally(record)
        self.checkpoints = FollowedCheckpoints(folder.storage) if is_kept else None
        self.launcher = self._launcher(processes, fork_server)
        closing.callback(self.launcher.close)
        self.observers.append(self.launcher.heard)

    def run(self) -> Run:
        """Start the peers, wait until the model is saved, and return the result."""
        try:
            self._train()
        except JobError as error:
            self.launcher.close()
            write_failure(self.folder, self.recipe, error, self.launcher.now)
            raise
        run = ended_run(self.recipe, self.folder, self.model)
        weights = FlatBuffer.empty(self.layout)
        weights.gather(self.model)
        warn_of_ending(run.summary, self.tally, weights)
        return run if self.is_kept else replace(run, summary=run.summary | {"run_dir": None}, folder=None)

    def _train(self) -> None:
        """Handle records, exits and faults of peers until the model is saved and all peers have ended."""
        with self.stop.heard():
            self.launcher.start_all()
            self._note_processes()
            asked, faults = False, self._faults()
            while not self._is_over():
                self.launcher.pause()
                self._pass_on()
                self._announce_checkpoint(self.launcher.now)
                self._check_processes()
                if faults is not None:
                    faults.run_due(self.tally.versions)
                if not asked and (self.stop.signal or self.stopped):
                    asked = True
                    if self.stop.signal:
                        self.callbacks.interrupt()
                    self.launcher.ask_to_finish("" if self.stop.signal else self.stopped)
            self._pass_on()
            self._announce_checkpoint(inf)

    def _is_over(self) -> bool:
        """Return whether the model is saved. If so, wait for the peers to end, and kill the others."""
        if not read_ending(self.folder):
            return False
        self.launcher.wait_for_end(END_SECONDS)
        return True

    def _pass_on(self) -> None:
        """Pass new records of the peers to observers."""
        for record in self.logs.read_own():
            for observer in self.observers:
                observer(record)

    def _announce_checkpoint(self, now: float) -> None:
        """Pass the newest new checkpoint of the peers to callbacks."""
        if self.checkpoints is not None and self.callbacks.need_checkpoints:
            self.announce_checkpoint(self.checkpoints.newly_completed(now))

    def _check_processes(self) -> None:
        """Replace peers that have ended. Raise the error of a failed peer, or JobError if no peer is left."""
        ended = self.launcher.newly_ended()
        if ended:
            self._pass_on()  # their last records
        with rows_named(self.recipe):
            self.launcher.replace(ended)
            self._check_any_left()
        self._note_processes()

    def _check_any_left(self) -> None:
        """Raise BadSamples or JobError if there is no peer with a model."""
        running = self.launcher.running.items()
        begun = [node for node, one in running if not one.joins or self._has_begun(node)]
        if not begun and not self.launcher.ending and not read_ending(self.folder):
            raise self.launcher.lost_all()

    def _has_begun(self, node: NodeId) -> bool:
        """Return whether a joining peer has received the state of another peer."""
        return self.folder.log_of(node).exists()

    def _note_processes(self) -> None:
        """Write the ids of the processes that hold the lock into it. Peers may outlive the launcher."""
        processes = self.launcher.pids
        if self.folder.lock is not None and processes != self.noted:
            self.noted = processes
            with suppress(OSError):  # the disk may be full
                note_holder(self.folder.lock, processes)

    def _faults(self) -> MeshFaults | None:
        """Return the faults of the run, or None if it has no faults."""
        chaos, launcher = self.recipe.config.chaos, self.launcher
        if chaos is None:
            return None
        past = self.past.log if self.past else None
        faults = launcher.faults
        return MeshFaults(faults, chaos, lambda: launcher.now, faults.note, lambda: launcher.begun, past)

    def _launcher(self, processes: PeerProcesses, fork_server: ForkClient) -> Launcher:
        recipe, engine, past = self.recipe, self.recipe.engine, self.past
        start = past.start if past else MeshStart()
        setup = PeerProcessSetup(
            recipe=recipe,
            start=start,
            keeps_checkpoints=self.is_kept,
            job=recipe.job,
            process=ProcessSetup.of_hub(processes.threads),
            folder=self.folder.path / PEERS,
            elapsed=past.now if past else 0.0,
            dollars_per_hour=engine.dollars_per_hour,
            as_if=processes.as_if,
        )
        launcher = Launcher(
            setup,
            fork_server,
            list(engine.names),
            respawn=engine.respawn,
            lock=self.folder.lock,
            taken=past.taken if past else (),
            skip_bad=recipe.config.skip_bad,
        )
        launcher.work.strikes.update(start.strikes)
        return launcher
