"""Parameters that are frozen at first, and trained from an epoch on."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from math import isfinite
from typing import Any

from torch import nn

from oddlot.core.support.errors import InvalidValue, UsageError


class Unfreezing:
    """Freezes and unfreezes the parameters of a model by the merged epochs.

    `unfreeze_at` has the epochs of patterns of names (`Job.unfreeze_at`). At first, all parameters are trainable, so
    that a layout has a place for their updates.
    """

    def __init__(self, unfreeze_at: Mapping[str, float], model: nn.Module) -> None:
        self._epochs: dict[str, float] = {}
        self._parameters = dict(model.named_parameters())
        for pattern, epochs in unfreeze_at.items():
            names = [name for name in self._parameters if fnmatchcase(name, pattern)]
            if not names:
                raise UsageError(
                    f"unfreeze_at: {pattern!r} matches no parameter. The model has: {', '.join(self._parameters)}",
                    "no_such_parameter",
                    "unfreeze_at",
                    given=pattern,
                    names=list(self._parameters),
                )
            self._epochs |= dict.fromkeys(names, float(epochs))
        for name in self._epochs:
            self._parameters[name].requires_grad_(True)

    def frozen(self, epochs: float) -> frozenset[str]:
        """Return the names of the parameters that are still frozen after these merged epochs."""
        return frozenset(name for name, since in self._epochs.items() if epochs < since)

    def apply(self, epochs: float) -> frozenset[str]:
        """Freeze and unfreeze the parameters for these merged epochs, and return the names of the frozen ones."""
        frozen = self.frozen(epochs)
        for name in self._epochs:
            self._parameters[name].requires_grad_(name not in frozen)
        return frozen


def check_unfreeze_at(unfreeze_at: Any) -> None:
    """Raise InvalidValue if it is not a mapping from patterns to epochs."""
    is_valid = isinstance(unfreeze_at, Mapping) and all(
        isinstance(name, str) and isinstance(epochs, int | float) and isfinite(epochs) and epochs >= 0
        for name, epochs in unfreeze_at.items()
    )
    if not is_valid:
        must = 'a dict from patterns to epochs, such as {"backbone.*": 2}'
        raise InvalidValue("unfreeze_at", unfreeze_at, must, "Job")
