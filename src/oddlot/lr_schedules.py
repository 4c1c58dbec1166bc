"""Learning rate schedules, for `Job(lr_schedule=...)`.

A schedule returns a factor on every learning rate. It counts merged epochs, so it means the same for every strategy,
engine and number of workers. Your own function that takes the epochs and returns a factor is a schedule too.
"""

from oddlot.train.lr_schedules import Cosine, Linear, MultiStep

__all__ = ["Cosine", "Linear", "MultiStep"]
