"""The run folder of a mesh: its model and summary, and `MeshEnded` for runs that already reached their goal."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import nn

from oddlot.checkpoint.local_storage import make_folder, naming_path, read_model, read_tensors, write_tensors
from oddlot.core.records import Record
from oddlot.core.support.errors import JobError, OddlotError
from oddlot.core.support.user_warnings import warn
from oddlot.engines.mesh.averaging import Averaging
from oddlot.history.included_samples import IncludedSamples
from oddlot.history.metrics import Tally, tally_of, use_saved_model
from oddlot.history.peer_audit import prove_model
from oddlot.history.peer_logs import read_run_log
from oddlot.history.run_folder import PEERS, SUMMARY, RunFolder
from oddlot.history.run_outcome import FAILED, PEER_RECORDS, in_short, read_ending
from oddlot.model.arrival import norm_of
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.run.control import RunControl
from oddlot.run.recipe import Recipe
from oddlot.run.result import Run
from oddlot.run.watchdogs import warn_if_large

UNSAVED = "unsaved.safetensors"
"""File for buffers that are not in `model.safetensors`."""


def make_peers_folder(folder: RunFolder) -> None:
    """Create the folder of the peers' logs, and remove files of earlier peers except their logs."""
    for left in (folder.path / PEERS).glob("*.json"):  # errors and marks of replaced peers
        left.unlink()
    with naming_path(folder.path / PEERS):
        make_folder(folder.path / PEERS)


def write_average(folder: RunFolder, model: nn.Module, mean: FlatBuffer) -> None:
    """Write `model`, with the weights `mean`, into the run folder.

    Merged buffers that are not in its `state_dict` are written to a separate file for `read_average`.
    """
    path, saved = folder.path / PEERS / UNSAVED, model.state_dict()
    if unsaved := {name: each.clone() for name, each in mean.views() if name not in saved}:
        with naming_path(path):
            write_tensors(unsaved, path)
    folder.write_model(model)


def read_average(folder: RunFolder, model: nn.Module) -> None:
    """Load the weights of an ended run into `model`. Raise CheckpointError if a file is damaged."""
    read_model(model, folder.model)
    buffers = dict(model.named_buffers())
    path = folder.path / PEERS / UNSAVED
    for name, value in read_tensors(path).items() if path.exists() else ():
        buffers[name].copy_(value)
    model.eval()


def mesh_summary(
    tally: Tally,
    records: Sequence[Record],
    ended: str,
    final: Averaging | None,
    folder: RunFolder | None,
    included: IncludedSamples,
) -> dict[str, Any]:
    """Return the summary of a run from the records of all peers and their final average."""
    peers = final.peers if final else []
    use_saved_model(tally, records, peers)
    proof = prove_model(included, tally.size, {"ended": ended, "peers_averaged": peers})
    tally.samples.lose(proof.lost)
    return (
        {"exchanges": 0, "bytes_exchanged": 0, "models_rejected": {}}
        | tally.summary()
        | {
            "ended": ended,
            "ended_version": tally.versions,
            "records": len(records),
            PEER_RECORDS: included.log_records,
            "run_dir": str(folder.path) if folder else None,
            "peers_averaged": peers,
            "disagreement": final.disagreement if final else None,
            "samples_left_out": proof.left_out,
            "peers_missing": list(proof.missing),
        }
    )


def write_failure(folder: RunFolder, recipe: Recipe, error: JobError, now: float) -> None:
    """Write the summary of a failed run, if possible. Call this after its peers have ended."""
    if (folder.path / SUMMARY).exists():
        return
    with suppress(OddlotError, OSError):
        records = read_run_log(folder)
        tally = tally_of(records, recipe.samples)
        tally.advance(max(now, tally.seconds))
        tally.finish()
        ended, included = f"{FAILED}{in_short(error)}", IncludedSamples.read(folder)
        folder.write(SUMMARY, mesh_summary(tally, records, ended, None, folder, included))


def warn_of_ending(summary: Mapping[str, Any], tally: Tally, model: FlatBuffer) -> None:
    """Warn if the saved model lacks samples or has large weights, or if peers rejected all models of each other."""
    warn_if_large(norm_of(model))
    missing = summary["peers_missing"]
    if count := summary["samples_left_out"]:
        message = (
            f"the saved model lacks {count:,} samples of {', '.join(missing) or 'peers'} that were lost or cut off, or "
            "whose logs were damaged: no other peer has processed these samples again"
        )
        warn(message, "samples_left_out", samples=count, peers=missing)
    if not summary["exchanges"] and (count := tally.models_rejected.total()):
        message = (
            f"the peers have trained alone: all {count:,} models that they sent each other were rejected (last: "
            f"{tally.last_rejection}). If a codec of 16 bits cannot represent the weights, use plain or bf16"
        )
        warn(message, "nothing_exchanged", models=count, last=tally.last_rejection)


def has_reached(recipe: Recipe, folder: RunFolder) -> bool:
    """Return whether the run in the folder ended by reaching this goal."""
    ended = read_ending(folder).get("ended") if folder.model.exists() else None
    return ended in {str(term) for term in recipe.goal.terms}


def ended_run(recipe: Recipe, folder: RunFolder, model: nn.Module) -> Run:
    """Return the result of the ended run in the folder, with its weights in `model`."""
    summary = read_ending(folder) | {"run_dir": str(folder.path)}
    read_average(folder, model)
    records = read_run_log(folder)
    history = tally_of(records, recipe.samples).quality.history
    return Run(model, summary, history, summary["ended"], folder.path, records)


class MeshEnded(RunControl):
    """A resumed run that has already reached its goal. No peer is started."""

    folder: RunFolder

    def __init__(self, recipe: Recipe, folder: RunFolder) -> None:
        super().__init__(recipe, folder, "the launcher", resume=True)
        folder.check_settings(self.identity)
        self.earlier = read_run_log(folder)
        for record in self.earlier:
            self.tally(record)

    def run(self) -> Run:
        """Return the result of the ended run."""
        return ended_run(self.recipe, self.folder, self.model)
