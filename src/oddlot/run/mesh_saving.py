"""Checkpoints of a run on a mesh: the average of all peers, with the state of each."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from oddlot.checkpoint.format import Snapshot
from oddlot.checkpoint.shared_writer import SharedSaver
from oddlot.core.user_warnings import warn
from oddlot.engines.mesh.averaging import Averaging
from oddlot.history.metrics import Tally
from oddlot.history.run_folder import RunFolder
from oddlot.run.intervals import Reminder
from oddlot.run.saving import HUNG_WRITE_SECONDS
from oddlot.run.spec import Recipe
from oddlot.train.flat_buffer import Layout


class MeshSaving:
    """Writes the checkpoints of a peer that leads, in the background.

    `launch` is the same for all processes of the run, until it is resumed. Checkpoints that were `there` before may be
    of other launches.
    """

    def __init__(
        self, recipe: Recipe, folder: RunFolder, layout: Layout, launch: str, there: Collection[str]
    ) -> None:
        self.layout = layout
        self.saver = SharedSaver(
            folder.storage,
            folder.logs,
            recipe.config.keep_checkpoints,
            copy_logs=folder.is_elsewhere,
            launch=launch,
            there=there,
        )
        self.every = recipe.config.checkpoint_every
        self.reminder: Reminder | None = None
        self.has_saved = False

    def due(self, tally: Tally, began_at: int) -> bool:
        """Whether a checkpoint is due: the first one after the first merge since version `began_at`."""
        if self.reminder is None:
            self.reminder = self.every.reminder(tally)
        is_first = not self.has_saved and tally.versions > began_at
        return self.reminder.due(tally) or is_first

    def save(self, average: Averaging, optimizer: Mapping[str, Tensor], *, wait: bool = False) -> None:
        """Write a checkpoint, unless another one is being written, or after it. The optimizer is that of the lead."""
        if wait:
            self.saver.wait(HUNG_WRITE_SECONDS)
        self._warn()
        self.has_saved = True
        version = sum(one.conductor["version"] for one in average.books.values())
        weights = {f"weights/{name}": tensor for name, tensor in average.mean.sections()}
        tensors = {"version": torch.tensor(version), **weights, **optimizer}
        self.saver.save(
            Snapshot(version, 0, self.layout.fingerprint, average.books, self.layout.to_json(), tensors)
        )

    def finish(self) -> None:
        """Wait for the checkpoint that is being written."""
        self.saver.wait(HUNG_WRITE_SECONDS)
        self._warn()

    def close(self) -> None:
        """Wait for the checkpoint that is being written, also if the run has failed."""
        self.saver.close(HUNG_WRITE_SECONDS)

    def _warn(self) -> None:
        for problem in self.saver.problems():
            warn(str(problem), problem.code, **problem.fields)
