"""The effective batch size: the number of samples of one step."""

from math import ceil
from typing import NamedTuple

from oddlot.core.strategy import Traits
from oddlot.formatting import counted

UPDATE, LOCAL_STEP = "model update", "local step"


class EffectiveBatch(NamedTuple):
    """The samples of one step, of the model at the hub or of a worker's own weights."""

    samples: int
    step: str
    """`UPDATE` or `LOCAL_STEP`"""
    of: str
    """Explanation, such as `2 tasks x batch 32`."""
    is_most: bool = False
    """Whether steps use fewer samples while there are fewer workers."""

    def __str__(self) -> str:
        most = "up to " if self.is_most else ""
        return f"{most}{counted(self.samples, 'sample')} per {self.step} ({self.of})"


def effective_batch(
    traits: Traits, batch: int, tasks: int, *, is_elastic: bool = False
) -> EffectiveBatch | None:
    """Return the effective batch of a run with `tasks` open tasks at most; None if the strategy does not declare it.

    `is_elastic` says whether the run may start with fewer workers. A round that waits for all workers has all tasks of
    each of them: with `in_flight=2`, two.
    """
    if traits.local_steps:
        return EffectiveBatch(batch, LOCAL_STEP, f"batch {batch}")
    if traits.step_samples is not None:
        return EffectiveBatch(traits.step_samples, UPDATE, "or more, if larger rounds are faster")
    if traits.task_samples is None:
        return None
    updates = ceil(traits.quorum * (tasks if traits.updates is None else traits.updates))
    task = traits.task_samples
    is_most = is_elastic and traits.updates is None and updates > 1
    each = f"batch {task}" if task == batch else f"{task} ({traits.task_setting})"
    return EffectiveBatch(
        updates * task, UPDATE, f"{updates} tasks x {each}" if updates > 1 else each, is_most
    )
