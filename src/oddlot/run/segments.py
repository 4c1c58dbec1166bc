"""The start of a new segment when a run is resumed: its entry in run.json, and the state of the hub's optimizer."""

import logging
from collections.abc import Iterable

from oddlot.core.records import HUB
from oddlot.core.support.errors import UsageError
from oddlot.core.support.user_warnings import warn
from oddlot.history.run_folder import RunFolder
from oddlot.history.segments import FIRST_VERSION, HUB_OPTIMIZER, STAGE, STATE_KEPT, Segment
from oddlot.model.weight_store import WeightStore
from oddlot.run.recipe import Recipe
from oddlot.run.resume import SavedRun

logger = logging.getLogger(__name__)


def check_has_hub(recipe: Recipe, folder: RunFolder | None) -> None:
    """Raise UsageError if the run has no hub: a run on a mesh has one segment."""
    name = type(recipe.strategy).__name__
    if recipe.traits.mesh:
        why = f"{name} runs on a mesh of peers"
    elif folder is not None and folder.is_begun and folder.is_mesh:
        why = f"the run in {folder.path} is on a mesh of peers"
    else:
        return
    message = (
        f"new_segment needs a run with a hub, and {why}: use its settings, or start a run in another folder"
    )
    raise UsageError(message, "segment_without_hub", "new_segment", strategy=name)


def check_order(past: SavedRun, recipe: Recipe) -> None:
    """Raise UsageError if exact rounds would start while later samples of an epoch are merged, but not earlier ones."""
    ledger = past.conductors[HUB].ledger
    if past.starts_segment and recipe.traits.exact and not ledger.merged_in_order:
        raise UsageError(
            f"exact rounds merge samples in order, but in epoch {ledger.epoch} later samples are merged before earlier "
            "ones: end the segment before with a complete epoch, such as until='epochs>=3'",
            "samples_not_in_order",
            "strategy",
            epoch=ledger.epoch,
        )


def load_state(past: SavedRun, store: WeightStore, segment: Segment) -> list[Segment]:
    """Load the checkpoint into the store, and return the segments of the resumed run.

    `segment` has the settings that the run continues with. In a new segment, the state of the hub's optimizer is kept
    if its kind, its parameter groups and the layout of its state are the same.
    """
    *earlier, last = past.segments
    if not past.starts_segment:
        store.load_state(past.tensors)
        return [*earlier, last | segment]
    same_kind = last.get(HUB_OPTIMIZER) == segment[HUB_OPTIMIZER]
    same_groups = past.checkpoint.job == store.layout.fingerprint
    is_kept = same_kind and same_groups and store.fits_optimizer(past.tensors)
    store.load_state(past.tensors, with_optimizer=is_kept)
    state = "keeps its state" if is_kept else "has a new state"
    stage = segment.get(STAGE, "")
    what = f"stage {stage}" if stage else "a new segment"
    logger.info("%s starts at version %s; the hub's optimizer %s", what, f"{store.version:,}", state)
    # Momentum 0 needs no state, and a stage chooses its optimizer: the user gave the state up.
    is_chosen = stage != last.get(STAGE, "")
    needs_state = _has_state(store.optimizer_tensors()) or not same_kind
    if not (is_kept or is_chosen) and _has_state(past.tensors) and needs_state:
        _warn_of_reset(last.get(HUB_OPTIMIZER, "unknown"), segment[HUB_OPTIMIZER], store.version)
    return [*past.segments, {FIRST_VERSION: store.version, **segment, STATE_KEPT: is_kept}]


def _has_state(tensors: Iterable[str]) -> bool:
    """Return whether there is a tensor of an optimizer."""
    return any(name.startswith("optimizer/") for name in tensors)


def _warn_of_reset(was: str, now: str, version: int) -> None:
    """Warn that the state of the hub's optimizer, such as its momentum, is not kept."""
    message = (
        f"the state of the hub's optimizer ({was}) is not kept at version {version:,}: the new segment uses {now} with "
        "a new state. To keep the state, use the same kind of optimizer"
    )
    warn(message, "optimizer_state_reset", version=version, was=was, now=now)
