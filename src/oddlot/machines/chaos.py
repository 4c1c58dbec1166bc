"""Misfortune on purpose: what is to happen to which machine, and when. Plain data, the same for every engine.

[[faults]]
kind = "kill"                # or freeze, slow, leave, delay, drop, corrupt, kill_hub
every_seconds = 5            # or per_hour = 60, at_versions = [100], at_seconds = [5, 9.5], which may be in a `file`

[[faults]]
kind = "slow"
machine = "w1"               # in all its lives; without it one of those that are there is drawn each time
at_seconds = [0]
factor = 5                   # it waits five times as long as its step took after each step
for_seconds = 60             # without it for good
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Annotated

from oddlot.core.checks import AboveZero, Must, NotNegative, Seed, check_settings
from oddlot.core.errors import UsageError
from oddlot.core.nearest import or_nearest

LASTING = {"freeze", "slow"}
"""They may end again."""
ANSWERED = {"delay", "drop", "corrupt"}
"""They strike the machine's next answer."""
KINDS = {"kill", "leave", "kill_hub"} | LASTING | ANSWERED


def _is_kind(kind: str) -> str:
    return "" if kind in KINDS else f"a kind of fault: {or_nearest(kind, KINDS)}"


def _are_times(times: object) -> bool:
    return isinstance(times, tuple | list) and all(
        isinstance(time, int | float) and 0 <= time < inf for time in times
    )


Times = Annotated[tuple[float, ...], Must("a list of numbers, finite and not negative", _are_times)]


@dataclass(frozen=True)
class Fault:
    """One kind of misfortune, at times, at versions, with a period or at a rate: exactly one of these four."""

    kind: Annotated[str, _is_kind]
    machine: str = ""
    """empty: one of those that are there, drawn each time"""
    at_seconds: Times = ()
    at_versions: Times = ()
    every_seconds: AboveZero | None = None
    per_hour: AboveZero | None = None
    """memoryless"""
    for_seconds: AboveZero | None = None
    """of freeze and slow; None: for good"""
    factor: NotNegative | None = None
    """of slow: how many times its step a machine waits after each step"""
    delay_seconds: NotNegative | None = None
    """of delay: how much later the answer comes"""

    def __post_init__(self) -> None:
        check_settings(self)
        whens = [name for name in WHENS if getattr(self, name) not in ((), None, [])]
        if len(whens) != 1:
            raise UsageError(
                f"a fault has one of {', '.join(WHENS)}, and this one has {len(whens)} of them", "kind"
            )
        for name, kinds in NEEDED.items():
            if (getattr(self, name) is not None) and self.kind not in kinds:
                raise UsageError(
                    f"{name} is not for {self.kind}, but for {' and '.join(sorted(kinds))}", name
                )
        for name, kind in {"factor": "slow", "delay_seconds": "delay"}.items():
            if self.kind == kind and getattr(self, name) is None:
                raise UsageError(f"{kind} needs `{name}`", "kind")


WHENS = ("at_seconds", "at_versions", "every_seconds", "per_hour")
NEEDED = {"for_seconds": LASTING, "factor": {"slow"}, "delay_seconds": {"delay"}}
"""Settings, and the kinds that they are for."""


@dataclass(frozen=True)
class Chaos:
    """All that is to go wrong in a run; `seed` is of its chance alone."""

    faults: Sequence[Fault] = field(default_factory=tuple)
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_settings(self)
        faults: object = self.faults
        if not isinstance(faults, Sequence) or not all(isinstance(one, Fault) for one in faults):
            raise UsageError("faults must be a list of oddlot.Fault", "faults")

    def check_machines(self, names: Sequence[str]) -> None:
        """UsageError: a fault is for a machine that is not among these."""
        for fault in self.faults:
            if fault.machine and fault.machine not in names:
                raise UsageError(
                    f"no machine is called {fault.machine!r}: {or_nearest(fault.machine, names[:100])}",
                    "machine",
                )
