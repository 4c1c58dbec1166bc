"""Merges with too few updates for a rule that compares them."""

from oddlot.core.support.user_warnings import warn
from oddlot.model.combine import LEAST_UPDATES, Combine

MANY = 100
"""Number of successive merges without an effect after which a warning is given."""


class SmallMerges:
    """Tells which merges have too few updates for a rule, and warns after `MANY` in succession."""

    def __init__(self, rule: Combine | None) -> None:
        self.rule = rule
        self.latest = 0
        """Number of latest merges with too few updates."""

    def is_too_small(self, updates: int) -> bool:
        """Return whether a merge of this number of updates must change nothing. Each merge is asked about once."""
        if self.rule is None or updates >= LEAST_UPDATES:
            self.latest = 0
            return False
        self.latest += 1
        if self.latest == MANY:
            warn(
                f"the last {MANY} merges had fewer than {LEAST_UPDATES} updates and did not change the model, because "
                "`combine` cannot compare so few: add workers, or leave out combine",
                "merges_too_small",
                merges=MANY,
            )
        return True
