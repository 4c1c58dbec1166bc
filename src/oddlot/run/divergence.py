"""Checks of what a run has learned: an overflow ends it, very large weights cause a warning."""

from math import isfinite

from oddlot.checkpoint.writer import BackgroundSaver
from oddlot.core.errors import JobError
from oddlot.core.user_warnings import warn
from oddlot.history.metrics import Tally
from oddlot.history.outcome import INTERRUPTED
from oddlot.train.store import Store

LARGE_NORM = 1e18
"""Norm of the weights above which a warning is shown."""


class Divergence:
    """Checks the norm of the weights: sums of large valid updates can overflow."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.saver: BackgroundSaver | None = None
        """Saver, which knows the last valid checkpoint."""
        self.warned = False

    def check(self) -> None:
        """Raise JobError if a weight is not finite: such weights are neither saved nor returned."""
        norm = self.store.norm
        if not isfinite(norm):
            if self.saver is not None:
                self.saver.wait()  # the one that is being written is sound too
            raise diverged(self.store.version, -1 if self.saver is None else self.saver.newest)
        self.warned = self.warned or warn_if_large(norm)


def warn_if_large(norm: float) -> bool:
    """Return whether the norm of the weights is very large, and warn of it."""
    if norm > LARGE_NORM:
        told = f"the norm of the weights is {norm:.2g}: training diverges. Lower the learning rate"
        warn(told, "weights_too_large", norm=norm)
    return norm > LARGE_NORM


def diverged(version: int, newest: int = -1) -> JobError:
    """Return the error for weights that are not finite. `newest` is the version of an intact checkpoint; -1: none."""
    saved = f"; the checkpoint of version {newest:,} is intact" if newest >= 0 else ""
    told = f"the weights of version {version} are not finite: training has diverged. Lower the learning rate"
    return JobError(f"{told}{saved}", "weights_not_finite", version=version, newest=newest)


def check_learned(tally: Tally, ended: str) -> None:
    """Raise JobError if all samples were skipped, so that there is no version besides the initial weights."""
    skipped = tally.samples.skipped
    if skipped and not tally.versions and ended != INTERRUPTED:
        raise JobError(
            f"nothing was trained: all {skipped:,} samples had invalid updates and were skipped. Last reason: "
            f"{tally.last_rejection}. Lower the learning rate, or fix the samples",
            "nothing_learned",
            samples=skipped,
        )
