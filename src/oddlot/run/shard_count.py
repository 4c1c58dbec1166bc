"""The number of shards for a strategy whose tasks are whole shards."""

from oddlot.core.strategy import Traits
from oddlot.core.user_warnings import warn

MINIBATCHES, LEAST = 10, 5
"""Minibatches of a shard: the least by default, and the number below which a warning is shown."""


def default_shards(traits: Traits, samples: int, batch: int, slots: int) -> int:
    """Return one shard for each task that can run at the same time, or fewer if shards would have under 10 minibatches.

    Longer passes learn more from each epoch, so there are no more shards than keep all workers busy. Strategies whose
    tasks are not whole shards have one.
    """
    if not traits.whole_shards:
        return 1
    return max(1, min(max(slots, traits.clients), samples // (MINIBATCHES * batch)))


def warn_of_shards(strategy: str, shards: int, workers: int, minibatches: float) -> None:
    """Warn if there are fewer shards than workers, or if a shard has under 5 minibatches."""
    if shards < workers:
        warn(
            f"{strategy} assigns whole shards, but shards = {shards} is fewer than the {workers} workers: some wait or "
            "train on the same shard. Use fewer workers, a smaller job.batch_size or shards=N (--shards N)",
            "few_shards",
            strategy=strategy,
            shards=shards,
            workers=workers,
        )
    if minibatches < LEAST:
        warn(
            f"a shard has {minibatches:.3g} minibatches: below {LEAST}, {strategy} learns little per epoch. "
            "Use fewer shards or a smaller job.batch_size",
            "small_shards",
            strategy=strategy,
            shards=shards,
            minibatches=minibatches,
        )
