"""A peer's process: its initial state, its part of the run and the end of the run."""

import hashlib
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from oddlot.checkpoint.background_writer import LAUNCH_DIGITS
from oddlot.checkpoint.local_storage import naming_path
from oddlot.core.conductor import Conductor
from oddlot.core.peers import IncludedModel
from oddlot.core.records import Record
from oddlot.core.support.errors import UsageError
from oddlot.core.tasks import NodeId
from oddlot.data.seeding import seed_all
from oddlot.engines.mesh.process import MeshProcess, PeerSetup
from oddlot.history.folder_lock import LOCK, hold
from oddlot.history.included_samples import IncludedSamples
from oddlot.history.metrics import tally_of
from oddlot.history.peer_logs import one_history
from oddlot.history.run_folder import PEERS, SUMMARY, RunFolder
from oddlot.history.run_outcome import INTERRUPTED
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.run.mesh_folder import mesh_summary, write_average
from oddlot.run.peer_run import PeerRun
from oddlot.run.peer_share import MeshStart, PeerShare
from oddlot.run.recipe import Recipe, rows_named
from oddlot.run.saving import Checkpoints
from oddlot.run.watchdogs import check_learned
from oddlot.train.job import layout_of, made


@dataclass(frozen=True, kw_only=True)
class PeerProcessSetup(PeerSetup):
    """The data that every peer of a run receives."""

    recipe: Recipe
    start: MeshStart
    keeps_checkpoints: bool

    def main(self, node: NodeId, index: int, life: Any) -> None:
        """Run a peer until the run has ended."""
        with rows_named(self.recipe), ExitStack() as closing:
            PeerProcess(self, node, index, life, closing).drive()


class PeerProcess(MeshProcess):
    """One peer, from its start to the end of the run."""

    setup: PeerProcessSetup
    run: PeerRun | None

    def __init__(
        self, setup: PeerProcessSetup, node: NodeId, index: int, life: Any, closing: ExitStack
    ) -> None:
        super().__init__(setup, node, index, life)
        recipe = self.recipe = setup.recipe
        self.folder = RunFolder(setup.folder.parent)
        seed_all(recipe.config.seed)
        self.model = made(recipe.job)
        self.layout = layout_of(recipe.job, self.model)
        self.share = PeerShare(recipe, node, tuple(recipe.engine.names), setup.start.done)
        self.checkpoints: Checkpoints | None = None
        self.open(recipe.run_data(self.layout, self.model))
        if setup.keeps_checkpoints:
            launch = hashlib.sha256(setup.secret).hexdigest()[:LAUNCH_DIGITS]
            self.checkpoints = Checkpoints.of_peers(
                recipe, self.folder, self.layout, setup.start.saved, launch
            )
            closing.callback(self.checkpoints.close)

    def begin(self) -> PeerRun:
        """Return a peer with the initial state of the run."""
        start = self.setup.start
        return self._run(
            start.conductor(self.share), start.copied_weights(self.model, self.layout), start.optimizer
        )

    def join(
        self, source: IncludedModel, weights: FlatBuffer, optimizer: Mapping[str, Tensor] | None
    ) -> PeerRun:
        """Return a peer that continues from the state of another peer."""
        included = IncludedSamples.read(self.folder, [source])
        self.share, conductor = self.share.taking_over(included, source, self.port.addresses)
        conductor.ledger.strikes.update(self.strikes)
        return self._run(conductor, weights, optimizer)

    def follow(self, now: float) -> str:
        """Let the peer act, and save the model if the run is complete.

        Return why the process ends. Empty: it continues.
        """
        run = self.run
        assert run is not None
        run.follow(now)
        if run.log is not None:
            run.log.keep_up(now)
        if run.peer.finished:
            run.flush_log()
        if run.final is not None and run.evaluating is None and not run.peer.is_done:
            self._save(run, now)
        if run.peer.finished and self.is_over:
            run.peer.is_done = True
        if not run.peer.is_done:
            return ""
        run.end(now)
        return run.peer.ended or "done"

    def stop(self, reason: str, now: float) -> None:
        """Finish, and ask all peers to finish."""
        if self.run is not None:
            self.run.stop(reason or INTERRUPTED, now)

    @property
    def is_over(self) -> bool:
        """Whether a peer has saved the model of the run."""
        return (self.folder.path / SUMMARY).exists()

    def _run(
        self, conductor: Conductor, weights: FlatBuffer, optimizer: Mapping[str, Tensor] | None
    ) -> PeerRun:
        return PeerRun(
            self.share,
            conductor,
            weights,
            optimizer,
            self.port,
            self.transport.address,
            [self._note],
            self.folder.log_of(self.node),
            self.checkpoints,
            self._is_replacing,
        )

    def _is_replacing(self, _: Collection[str]) -> bool:
        """Return whether the launcher is running and replaces lost peers."""
        return self.recipe.engine.respawn and self.life.is_heard

    def _note(self, record: Record) -> None:
        if self.run is not None:
            self.run.heard(record)

    def _save(self, run: PeerRun, now: float) -> None:
        """Save the average of all peers as the model of the run, unless another peer saves or has saved it."""
        with ExitStack() as closing, naming_path(self.folder.path / PEERS / LOCK):
            try:
                hold(self.folder.path / PEERS, closing)
            except UsageError:
                return
            if not self.is_over:
                self._save_alone(run, now)

    def _save_alone(self, run: PeerRun, now: float) -> None:
        assert run.final is not None
        if self.checkpoints is not None:
            self.checkpoints.finish()
        included = IncludedSamples.read(self.folder)
        records = one_history({node: one.log for node, one in included.histories.items()})
        tally = tally_of(records, self.recipe.samples)
        tally.advance(now)
        tally.finish()
        check_learned(tally, run.peer.ended)
        run.final.mean.scatter(self.model)
        write_average(self.folder, self.model, run.final.mean)
        summary = mesh_summary(tally, records, run.peer.ended, run.final, self.folder, included)
        self.folder.write(SUMMARY, summary)
