"""A fault file describes the faults to inject: their kinds, machines and times. It is the same for every engine.

[[faults]]
kind = "kill"                # or freeze, slow, leave, delay, drop, corrupt, kill_hub, partition
every_seconds = 5            # or per_hour = 60, at_versions = [100], at_seconds = [5, 9.5], which may be in a `file`

[[faults]]
kind = "slow"
machine = "w1"               # default: a random machine each time
at_seconds = [0]
factor = 5                   # after each step, wait five times as long as the step took
for_seconds = 60             # default: until the worker ends
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Annotated

from oddlot.core.support.errors import InvalidValue, UnknownName, UsageError
from oddlot.core.support.text import or_nearest
from oddlot.core.support.validation import AboveZero, Must, NotNegative, Seed, check_settings
from oddlot.core.tasks import machine_of
from oddlot.machines.capacity import Capacity

if TYPE_CHECKING:
    from oddlot.engines.base import EngineConfig

LASTING = {"freeze", "slow"}
"""Kinds that last for some time."""
ANSWERED = {"delay", "drop", "corrupt"}
"""Kinds that change the worker's next update."""
OF_HUB, OF_MESH = {"kill_hub"}, {"partition"}
"""Kinds that need a hub, and kinds that need a mesh."""
KINDS = {"kill", "leave"} | LASTING | ANSWERED | OF_HUB | OF_MESH
OF_WORKERS = {"kill", "leave"} | LASTING
"""Kinds that the engine injects. The other kinds apply to messages or to the hub."""


def _is_kind(kind: str) -> str:
    return "" if kind in KINDS else f"a kind of fault. {or_nearest(kind, KINDS)}"


def _are_times(times: object) -> bool:
    return isinstance(times, tuple | list) and all(
        isinstance(time, int | float) and 0 <= time < inf for time in times
    )


def _are_versions(versions: object) -> bool:
    return isinstance(versions, tuple | list) and all(
        type(version) is int and version >= 0 for version in versions
    )


Times = Annotated[tuple[float, ...], Must("a list of numbers, finite and not negative", _are_times)]

Versions = Annotated[tuple[int, ...], Must("a list of whole numbers, not negative", _are_versions)]
Often = Annotated[float, Must("finite and at least 0.001", lambda seconds: 0.001 <= seconds < inf)]
"""Interval between faults, in seconds."""
Rate = Annotated[float, Must("above 0 and at most 3,600,000", lambda rate: 0 < rate <= 3_600_000)]
MAX_FAULTS = 5_000
"""Largest number of faults of a run."""
MAX_SHOWN = 4
"""Largest number of times in the name of a fault."""


@dataclass(frozen=True)
class Fault:
    """A fault to inject. Set exactly one of `at_seconds`, `at_versions`, `every_seconds` and `per_hour`.

    - `kill`: kills the worker, as `kill -9`.
    - `freeze`: stops the worker, as SIGSTOP, for `for_seconds` or until the worker ends.
    - `slow`: makes the worker wait after each step, `factor` times as long as the step took, for `for_seconds` or until
      the worker ends.
    - `leave`: gives the worker notice, as SIGTERM. It hands over the finished part of its task and ends.
    - `delay`: delays the worker's next update by `delay_seconds`.
    - `drop`: cancels the worker's next update.
    - `corrupt`: fills the worker's next update with NaN.
    - `kill_hub`: kills the process that trains, as `kill -9`. `resume` continues the run.
    - `partition`: on a mesh, cuts `machine`, or half of the peers, off from the others for `for_seconds` or for good.

    On a mesh, `delay`, `drop` and `corrupt` happen to the next model that the peer sends to another peer.

    The machine's next worker is neither frozen nor slow, unless the hub was lost in between. The log has every injected
    fault. After a resume from a checkpoint without its log, faults since the checkpoint are injected again.
    """

    kind: Annotated[str, _is_kind]
    """`kill`, `freeze`, `slow`, `leave`, `delay`, `drop`, `corrupt`, `kill_hub` or `partition`."""
    machine: str = ""
    """Name of the machine. Empty: one of the present machines at random, each time."""
    at_seconds: Times = ()
    """Times of the fault, in seconds since the start of the run."""
    at_versions: Versions = ()
    """Model versions for the fault."""
    every_seconds: Often | None = None
    """Interval between faults, in seconds."""
    per_hour: Rate | None = None
    """Mean number of faults per hour, at exponentially distributed intervals."""
    for_seconds: AboveZero | None = None
    """Duration of `freeze`, `slow` and `partition`, in seconds. Default: until the worker or the run ends."""
    factor: AboveZero | None = None
    """Wait after each step for `slow`, relative to the duration of the step. The largest of several faults counts."""
    delay_seconds: NotNegative | None = None
    """Delay of the update for `delay`, in seconds."""

    @property
    def is_once(self) -> bool:
        """Whether it has times or versions. When it is due, such a fault waits for a matching worker."""
        return bool(self.at_seconds or self.at_versions)

    def is_for(self, node: str) -> bool:
        """Return whether it can be injected into this worker."""
        return self.machine in {"", machine_of(node)}

    def __str__(self) -> str:
        parts = [
            f"{name}={_short(value)}"
            for name in WHENS
            if (value := getattr(self, name)) not in ((), None, [])
        ]
        lasts = [f"{name}={value:g}" for name in ALLOWED if (value := getattr(self, name)) is not None]
        return " ".join(filter(None, [self.kind, self.machine, *parts, *lasts]))

    def __post_init__(self) -> None:
        check_settings(self)
        self._check_whens()
        if self.machine and self.kind == "kill_hub":
            message = "kill_hub kills the hub, not a machine: leave `machine` out"
            raise self._of_another_kind("machine", message)
        for name, kinds in ALLOWED.items():
            if getattr(self, name) is not None and self.kind not in kinds:
                message = (
                    f"{name} has no effect on {self.kind}: it is a setting of {' and '.join(sorted(kinds))}"
                )
                raise self._of_another_kind(name, message)
        if (needed := NEEDED.get(self.kind)) and getattr(self, needed) is None:
            raise UsageError(f"{self.kind} needs `{needed}`", "missing_setting", "kind", name=needed)

    def _check_whens(self) -> None:
        given = [name for name in WHENS if getattr(self, name) not in ((), None, [])]
        if len(given) != 1:
            one = f"a fault needs exactly one of {', '.join(WHENS)} (or a `file` of times)"
            message = f"{one}, but this one has {', '.join(given) or 'none of them'}"
            raise UsageError(message, "not_one_of", "kind", given=given)

    def _of_another_kind(self, name: str, message: str) -> UsageError:
        return UsageError(message, "setting_of_another_kind", name, given=name, kind=self.kind)


WHENS = ("at_seconds", "at_versions", "every_seconds", "per_hour")
ALLOWED = {"for_seconds": LASTING | OF_MESH, "factor": {"slow"}, "delay_seconds": {"delay"}}
"""Settings, with the kinds that support them."""
NEEDED = {"slow": "factor", "delay": "delay_seconds"}
"""Kinds, with their required setting."""


def _short(value: object) -> str:
    """Return times as a short text."""
    if not isinstance(value, tuple | list):
        return f"{value:g}"
    times = [f"{time:g}" for time in value]
    return ",".join(
        times if len(times) <= MAX_SHOWN else [*times[:2], f"...{len(times) - 3} more...", times[-1]]
    )


def check_count(faults: int) -> None:
    """Raise UsageError if there are more than `MAX_FAULTS` faults."""
    if faults > MAX_FAULTS:
        message = f"{faults:,} faults are more than {MAX_FAULTS:,}: use fewer faults with several times in `at_seconds`"
        raise UsageError(message, "too_many_faults", "faults", given=faults, most=MAX_FAULTS)


@dataclass(frozen=True)
class Chaos:
    """The faults to inject into a run."""

    faults: Sequence[Fault] = field(default_factory=tuple)
    """Faults to inject."""
    seed: Seed = 0
    """Random seed of the faults."""
    capacity: Capacity | None = None
    """Number of available machines over time. Machines above it are killed, as by `kill -9`, and return when the
    capacity rises. Default: no preemptions."""

    def __post_init__(self) -> None:
        check_settings(self)
        faults: object = self.faults
        if not isinstance(faults, Sequence) or not all(isinstance(one, Fault) for one in faults):
            raise InvalidValue("faults", faults, "a list of oddlot.faults.Fault", "Chaos")
        check_count(len(faults))

    def named(self) -> list[tuple[str, Fault]]:
        """Return the faults with their names in the log. Equal faults are numbered."""
        counts, names = Counter[str](), list[str]()
        for fault in self.faults:
            counts[text := str(fault)] += 1
            names.append(f"{text} #{counts[text]}" if counts[text] > 1 else text)
        return list(zip(names, self.faults, strict=True))

    def check_engine(self, engine: "EngineConfig", *, mesh: bool = False) -> None:
        """Raise UsageError if the engine cannot inject a fault, or if its machine, hub or mesh does not exist."""
        for place, fault in enumerate(self.faults):
            if fault.kind in (OF_HUB if mesh else OF_MESH):
                there = "a mesh has no hub" if mesh else "it needs a mesh, such as with strategy = 'gossip'"
                message = f"`{fault.kind}` cannot be injected: {there}"
                raise UsageError(
                    message, "fault_not_supported", f"faults.{place}.kind", fault=fault.kind, mesh=mesh
                )
            if not engine.faults or (fault.kind in OF_WORKERS and fault.kind not in engine.faults):
                raise _cannot_inject(engine, fault.kind, f"faults.{place}.kind")
        if self.capacity is not None and mesh:
            message = "capacity cannot be injected into a mesh: use the faults `kill` and `leave`"
            raise UsageError(message, "fault_not_supported", "capacity", fault="preempt", mesh=mesh)
        if self.capacity is not None and "preempt" not in engine.faults:
            raise _cannot_inject(engine, "preempt", "capacity")
        if self.capacity is not None and not engine.respawn:
            message = (
                "capacity needs respawn=True: preempted workers must be replaced when the capacity rises"
            )
            raise UsageError(message, "capacity_without_respawn", "chaos")
        self.check_machines(engine.names)

    def check_machines(self, names: Sequence[str]) -> None:
        """Raise UsageError, with the key of the fault, if the machine of a fault is not in `names`."""
        known = frozenset(names)
        for place, fault in enumerate(self.faults):
            if fault.machine and fault.machine not in known:
                raise UnknownName("machine", fault.machine, names[:100], key=f"faults.{place}.machine")


def _cannot_inject(engine: "EngineConfig", kind: str, key: str) -> UsageError:
    known = sorted(engine.faults)
    can = f"it can inject {', '.join(known)} into workers" if known else "it cannot inject faults"
    message = f"the {engine.kind} engine cannot inject `{kind}`: {can}"
    return UsageError(message, "fault_not_supported", key, engine=engine.kind, fault=kind, known=known)
