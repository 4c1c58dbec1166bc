"""Reading the state from which a run is resumed."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from oddlot.checkpoint.format import Checkpoint, check_log, newest
from oddlot.checkpoint.other_layout import check_layout
from oddlot.core.conductor import Conductor
from oddlot.core.conductor_checks import read_conductor
from oddlot.core.errors import CheckpointError, ProtocolError, UsageError
from oddlot.core.events import Joined, Ordered
from oddlot.core.records import Record
from oddlot.core.serialization import DAMAGED
from oddlot.core.strategy import Strategy
from oddlot.core.tasks import NodeId
from oddlot.core.user_warnings import warn
from oddlot.history.log import is_void, read_sound
from oddlot.history.run_folder import RunFolder
from oddlot.train.flat_buffer import Layout


@dataclass(frozen=True)
class Past:
    """The newest complete checkpoint of a run, and its log."""

    conductor: Conductor
    tensors: Mapping[str, Tensor]
    checkpoint: Checkpoint
    there: list[str]
    """Names of all checkpoints."""
    log: list[Record]

    @property
    def nodes(self) -> frozenset[NodeId]:
        """Return the workers' names that were used."""
        return frozenset(r.event.node for r in self.log if isinstance(r.event, Joined | Ordered))

    def readable(self) -> AbstractContextManager[None]:
        """Raise CheckpointError if the code inside finds that the checkpoint has no state of a run."""
        return readable(self.checkpoint)


@contextmanager
def readable(checkpoint: Checkpoint) -> Iterator[None]:
    """Raise CheckpointError if the code inside finds that a checkpoint has no state of a run."""
    try:
        yield
    except (*DAMAGED, ProtocolError, UsageError, RuntimeError) as error:
        path = checkpoint.storage.path(checkpoint.name)
        told = (
            f"checkpoint {path} has no state of this run ({error!r}): move it away to resume from an older one, or "
            "start again in another folder"
        )
        raise CheckpointError(told, "no_state", path=path, reason=repr(error)) from error


def warn_of_damage(checkpoint: Checkpoint, logs: Iterable[CheckpointError | None]) -> None:
    """Warn of the damage of logs, if there is any, and of newer checkpoints, all of which are left out."""
    for each in filter(None, (*logs, *checkpoint.warnings)):
        told = f"{each}. Resuming from {checkpoint.name}"
        warn(told, "damage_left_out", checkpoint=checkpoint.name, damage=each.code, **each.fields)


def read_past(
    folder: RunFolder, identity: dict[str, Any], layout: Layout, strategy: type[Strategy]
) -> Past | None:
    """Read the state of a run with this identity and layout. Its goal and its engine may differ.

    Return None if the run was killed before its first checkpoint was complete. Raise CheckpointError if it is another
    run or has no complete checkpoint.
    """
    folder.check_settings(identity)
    if folder.ended_before_checkpoint:
        folder.restart()
        return None
    log, damage = read_sound(folder.log)
    try:
        there = folder.checkpoint_names()
        checkpoint = newest(folder.storage, len(log), partial(is_void, log))
        check_log(checkpoint, folder.log)
    except CheckpointError as error:
        if damage is None:
            raise
        raise error.retold(f"{damage}\n{error}", line=damage.fields["line"]) from error
    warn_of_damage(checkpoint, [damage])
    snapshot = checkpoint.load()
    with readable(checkpoint):
        check_layout(checkpoint, snapshot.layout, layout)
        conductor = read_conductor(snapshot.conductor, strategy)
    return Past(conductor, snapshot.tensors, checkpoint, there, log)
