"""Factors on the learning rate over a run: `Job(lr_schedule=...)`."""

from oddlot.train.lr_schedules import Cosine, Linear, MultiStep

__all__ = ["Cosine", "Linear", "MultiStep"]
