"""The prediction of a plan, as its file keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import Annotated, Any, Literal

from oddlot.core.support.errors import UsageError
from oddlot.core.support.validation import AboveZero, AtLeastOne, Must, NotNegative, check_settings
from oddlot.machines.buying import Buying

Minimize = Literal["time", "dollars"]
Range3 = Annotated[
    tuple[float, float, float],
    Must(
        "the smallest, middle and largest value, in this order",
        lambda value: 0 <= value[0] <= value[1] <= value[2] and isfinite(value[2]),
    ),
]
Curve = Annotated[
    tuple[tuple[float, float, float], ...],
    Must(
        "rows of seconds, epochs and loss, in the order of time",
        lambda rows: all(one[0] <= other[0] for one, other in pairwise(rows)),
    ),
]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a plan predicts for its job, and the request that it was made for."""

    machines: str
    """Fleet file: an absolute path, or relative to the folder of this file."""
    minimize: Minimize = "time"
    """Objective of the plan: time or dollars."""
    deadline_hours: AboveZero | None = None
    """Largest time to the goal, in hours. Default: no deadline."""
    budget_dollars: AboveZero | None = None
    """Largest cost. Default: no budget."""
    workload: str = ""
    """Workload that was planned. Empty: not checked."""
    samples: AtLeastOne | None = None
    """Number of its training samples. Default: not checked."""
    parameters: AtLeastOne | None = None
    """Number of parameters of its model. Default: not checked."""
    bought: str = ""
    """Purchase option: spot, "on demand" or a buying policy. Empty for a fleet without zones."""
    compute_factor: AboveZero = 1.0
    """Computation time in the profile, relative to the fleet file. 1: without a profile."""
    merge_seconds: NotNegative = 0.0
    """Seconds of the hub to merge an update in the profile. 0: without a profile."""
    buying: Buying | None = None
    """Buying policy that was compared, with the epochs to the goal. Default: the fleet file's."""
    seconds: Range3
    """Predicted time to the goal: smallest, middle and largest value, in seconds."""
    dollars: Range3
    """Predicted cost: smallest, middle and largest value."""
    curve: Curve = ()
    """Predicted progress: rows of seconds, epochs and loss."""
    before: Mapping[str, Any] = field(default_factory=dict)
    """Tables strategy and job of the file before the plan, and its codec. A new plan starts from them."""

    def __post_init__(self) -> None:
        check_settings(self)

    def check(self, **given: str | int) -> None:
        """Raise UsageError if the workload, the samples or the parameters of a job differ from the planned ones."""
        for name, value in given.items():
            known = getattr(self, name)
            if known not in (None, "", value):
                message = f"the plan was made for a job with {name} = {known!r}, but this job has {value!r}: "
                message += "run `oddlot plan` again"
                raise UsageError(
                    message, "plan_of_other_job", f"plan.{name}", name=name, known=known, given=value
                )
