"""What a run on a mesh writes into its folder, on every engine."""

from collections.abc import Mapping, Sequence
from typing import Any

from oddlot.checkpoint.disk import make_folder
from oddlot.core.records import Record
from oddlot.core.user_warnings import warn
from oddlot.engines.mesh.averaging import Averaging
from oddlot.history.claim import make_room
from oddlot.history.included_samples import IncludedSamples
from oddlot.history.metrics import Tally
from oddlot.history.outcome import PEER_RECORDS
from oddlot.history.peer_audit import prove_model
from oddlot.history.run_folder import ABOUT, ENGINE, PEERS, RUN, RunFolder
from oddlot.run.spec import Recipe
from oddlot.train.flat_buffer import Layout


def begin_folder(folder: RunFolder, recipe: Recipe, layout: Layout, *, is_new: bool) -> None:
    """Write run.json, and make the folder of the peers' logs. A new run removes what was there."""
    if is_new:
        make_room(folder)
    engine = recipe.engine
    told = {
        ENGINE: {"kind": engine.kind, "workers": engine.max_workers, "in_flight": 1},
        RUN: recipe.config.plain(),
        ABOUT: dict(recipe.config.about),
    }
    folder.begin({**recipe.identity(layout), **told})
    make_folder(folder.path / PEERS)


def mesh_summary(
    tally: Tally,
    records: Sequence[Record],
    ended: str,
    final: Averaging | None,
    folder: RunFolder | None,
    included: IncludedSamples,
) -> dict[str, Any]:
    """Return the summary of a run, from the records of all peers and their final average."""
    peers = final.peers if final else []
    proof = prove_model(included, tally.size, {"ended": ended, "peers_averaged": peers})
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
        }
    )


def warn_of_left_out(summary: Mapping[str, Any]) -> None:
    """Warn if the saved model does not include all samples."""
    if count := summary.get("samples_left_out"):
        told = (
            f"the saved model lacks {count:,} samples: the peers that trained on them were lost or cut off, or their "
            "logs were damaged, and no other peer has processed these samples again"
        )
        warn(told, "samples_left_out", samples=count)
