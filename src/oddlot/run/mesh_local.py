"""A run on a mesh of local processes: the launcher, which starts them, follows their logs and returns the result."""

import json
import os
import secrets
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import replace

from oddlot.checkpoint.atomic_files import told_where
from oddlot.checkpoint.disk import read_file, replace_file
from oddlot.core.errors import JobError
from oddlot.core.serialization import DAMAGED
from oddlot.core.tasks import NodeId
from oddlot.engines.base import PeerProcesses
from oddlot.engines.failure import failure_of
from oddlot.engines.local.shared_memory import pack_parcel
from oddlot.engines.mesh.launcher import FAILED_CODE, Launcher, clock
from oddlot.engines.mesh.local_faults import LAUNCHER, LocalMeshFaults
from oddlot.engines.mesh.peer_output import PeerOutput
from oddlot.engines.mesh.transport import Hello, Transport
from oddlot.engines.process_setup import ProcessSetup
from oddlot.engines.respawn import log_exit
from oddlot.faults.injector import MeshFaults
from oddlot.history.lock import note_holder
from oddlot.history.outcome import FAILED, read_ending
from oddlot.history.peer_logs import PeerLogs
from oddlot.history.run_folder import PEERS, RUN_ID, RunFolder
from oddlot.run import peer_process
from oddlot.run.bad_rows import rows_named
from oddlot.run.control import RunControl
from oddlot.run.mesh_ended import ended_run
from oddlot.run.mesh_folder import make_peers_folder, warn_of_ending, write_failure
from oddlot.run.mesh_resume import continue_mesh
from oddlot.run.peer_process import PeerSetup, failure_path
from oddlot.run.peer_share import MeshStart
from oddlot.run.result import Run
from oddlot.run.spec import Recipe
from oddlot.run.user_observers import announce_stop
from oddlot.train.flat_buffer import FlatBuffer

END_SECONDS = 30.0
"""Seconds until peers must have ended after the model is saved."""


class MeshLocal(RunControl):
    """The launcher of a run: what `Training` is for a run with a hub."""

    folder: RunFolder

    def __init__(
        self,
        recipe: Recipe,
        processes: PeerProcesses,
        closing: ExitStack,
        folder: RunFolder | None = None,
        resume: bool = False,
    ) -> None:
        self.closing = closing
        self.is_kept = folder is not None
        if folder is None:
            folder = RunFolder(closing.enter_context(tempfile.TemporaryDirectory(prefix="oddlot-")))
        super().__init__(recipe, folder, "the launcher", resume=resume)
        self.noted: list[int] = []
        names = recipe.engine.names
        self.past = continue_mesh(recipe, folder, self.layout, names) if resume else None
        self.begin_folder(folder, is_new=self.past is None)
        make_peers_folder(folder)
        self.logs = PeerLogs(folder)
        self.output = PeerOutput(hidden=FAILED)
        self.earlier = self.past.earlier if self.past else []
        self.logs.skip(self.earlier)
        for record in self.earlier:
            self.tally(record)
        self.launcher = self._launcher(processes)
        self.observers.append(self.launcher.heard)

    def run(self) -> Run:
        """Start the peers, and follow them until the model is saved."""
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
        """Follow the peers until the model is saved and all have ended."""
        with self.stop.heard():
            self.launcher.start_all()
            self._note_processes()
            asked, faults = False, self._faults()
            while not self._is_over():
                self.launcher.pause()
                self._pass_on()
                self._check_processes()
                if faults is not None:
                    faults.run_due(self.tally.versions)
                if not asked and (self.stop.signal or self.stopped):
                    asked = True
                    if self.stop.signal:
                        announce_stop(self.observers)
                    self.launcher.ask_to_finish("" if self.stop.signal else self.stopped)
            self._pass_on()

    def _is_over(self) -> bool:
        """Whether the model is saved and all peers have ended. Kill those that do not end."""
        if not read_ending(self.folder):
            return False
        self.launcher.wait_for_end(END_SECONDS)
        return True

    def _pass_on(self) -> None:
        """Show new output of the peers, and pass new records to observers."""
        self.output.read(self.launcher.files)
        for record in self.logs.read_own():
            for observer in self.observers:
                observer(record)

    def _check_processes(self) -> None:
        """Replace peers that have ended. Raise the error of one that failed, or JobError if no peer is left."""
        ended = self.launcher.check()
        if ended:
            self._pass_on()  # what they have logged before
        for peer in ended:
            node, code = peer.node, peer.process.returncode
            if peer.life.has_failed:
                raise self._failure(node)
            log_exit(f"peer {node}", code)
        with rows_named(self.recipe):
            self.launcher.replace(ended)
            self._check_any_left()
        self._note_processes()

    def _check_any_left(self) -> None:
        """Raise BadSamples or JobError if there is no peer with a model."""
        begun = [
            node for node, one in self.launcher.running.items() if not one.joins or self._has_begun(node)
        ]
        if not begun and not read_ending(self.folder):
            told = 'all peers were lost before the run was complete: resume="latest" (--resume latest) continues it'
            raise self.launcher.work.blame() or JobError(told, "no_workers_left")

    def _failure(self, node: NodeId) -> JobError:
        """Return the error of a peer that failed: that in its file, or else the end of its output.

        Raise JobError if the disk is full, so that the peer could write neither.
        """
        path = failure_path(self.folder.path, node)
        try:
            return failure_of(node, dict(json.loads(read_file(path))))
        except (OSError, *DAMAGED):
            with told_where(self.folder.path):
                replace_file(path, b"")
                path.unlink()
            text = self.launcher.output_of(node)
            told = f"peer {node} ended with exit code {FAILED_CODE}:\n{text}"
            return JobError(told, "peer_failed", node=node)

    def _has_begun(self, node: NodeId) -> bool:
        """Whether a peer that joins has got the state of another one."""
        return self.folder.log_of(node).exists()

    def _note_processes(self) -> None:
        """Write into the lock which processes hold it: the peers do too, when the launcher has ended."""
        processes = self.launcher.processes
        if self.folder.lock is not None and processes != self.noted:
            self.noted = processes
            with suppress(OSError):  # of a full disk
                note_holder(self.folder.lock, processes)

    def _faults(self) -> MeshFaults | None:
        """Return the faults of the run, with a transport of the launcher's own; None without faults."""
        chaos = self.recipe.config.chaos
        if chaos is None:
            return None
        hello = Hello.here(LAUNCHER, self.setup.run_id, self.layout)
        transport = Transport(hello, self.setup.secret, self.layout, self.recipe.codec)
        self.closing.callback(transport.close)
        faults = LocalMeshFaults(self.launcher, transport)
        past = self.past.log if self.past else None
        return MeshFaults(
            faults, chaos, lambda: self.launcher.now, faults.note, lambda: self.launcher.begun, past
        )

    def _launcher(self, processes: PeerProcesses) -> Launcher:
        engine = self.recipe.engine
        self.setup = PeerSetup(
            self.recipe,
            self.past.start if self.past else MeshStart(),
            str(self.folder.path),
            self.is_kept,
            str(self.folder.settings()[RUN_ID]),
            secrets.token_bytes(32),
            clock() - (self.past.now if self.past else 0.0),
            ProcessSetup.of_hub(processes.threads),
            processes.as_if,
        )
        parcel = pack_parcel(self.setup)
        self.closing.callback(os.close, parcel)
        outputs, taken = self.folder.path / PEERS, self.past.taken if self.past else ()
        inherited = [parcel, self.folder.lock] if self.folder.lock is not None else [parcel]
        skip_bad, began = self.recipe.config.skip_bad, self.setup.began
        launcher = Launcher(
            peer_process.__name__, engine.names, inherited, outputs, engine.respawn, began, taken, skip_bad
        )
        launcher.work.strikes.update(self.setup.start.strikes)
        self.closing.callback(launcher.close)
        return launcher
