"""Tests of the check, before a run starts, that the engine supports its faults."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from oddlot.core.support.errors import UsageError
from oddlot.engines.base import EngineConfig, FaultKind
from oddlot.engines.local.config import Local
from oddlot.engines.simulated.config import Simulated
from oddlot.faults.plan import KINDS, OF_HUB, OF_MESH, Chaos, Fault
from oddlot.machines.capacity import Alive
from oddlot.machines.machine import Machine
from oddlot.machines.time_series import Steps
from tests.transcripts import raises

CAPACITY = Alive(Steps((0.0,), (1.0,)))
NEEDED: dict[str, dict[str, Any]] = {"slow": {"factor": 1.0}, "delay": {"delay_seconds": 1.0}}


@dataclass(frozen=True)
class KillsOnly(Local):
    """An engine that can only kill workers."""

    kind: ClassVar[str] = "kills_only"
    faults: ClassVar[frozenset[FaultKind]] = frozenset({"kill"})


@dataclass(frozen=True)
class NoFaults(Local):
    """An engine without fault injection."""

    kind: ClassVar[str] = "no_faults"
    faults: ClassVar[frozenset[FaultKind]] = frozenset()


def fault(kind: str) -> Fault:
    """Return a fault of this kind at 0 s."""
    return Fault(kind, at_seconds=(0.0,), **NEEDED.get(kind, {}))


@pytest.mark.parametrize("engine", [Local(2), Simulated([Machine("m", 0.1)])], ids=["local", "simulated"])
def test_built_in_engines_support_every_fault(engine: EngineConfig) -> None:
    Chaos([fault(kind) for kind in sorted(KINDS - OF_MESH)], capacity=CAPACITY).check_engine(engine)
    Chaos([fault(kind) for kind in sorted(KINDS - OF_HUB)]).check_engine(engine, mesh=True)


@pytest.mark.parametrize(
    ("chaos", "kind", "key"),
    [
        (Chaos([fault("kill"), fault("freeze")]), "freeze", "faults.1.kind"),
        (Chaos([fault("slow")]), "slow", "faults.0.kind"),
        (Chaos([fault("leave")]), "leave", "faults.0.kind"),
        (Chaos(capacity=CAPACITY), "preempt", "capacity"),
    ],
    ids=["freeze", "slow", "leave", "preempt"],
)
def test_unsupported_fault_is_rejected_before_the_run(chaos: Chaos, kind: str, key: str) -> None:
    with raises(UsageError, "fault_not_supported", engine="kills_only", fault=kind, known=["kill"]) as caught:
        chaos.check_engine(KillsOnly())
    assert isinstance(caught.value, UsageError)
    assert caught.value.key == key


def test_message_faults_work_on_any_engine_with_faults() -> None:
    Chaos([fault("kill"), fault("drop"), fault("kill_hub")]).check_engine(KillsOnly())


def test_engine_without_fault_injection_rejects_every_fault() -> None:
    with raises(UsageError, "fault_not_supported", engine="no_faults", fault="drop", known=[]):
        Chaos([fault("drop")]).check_engine(NoFaults())


def test_capacity_without_respawn_is_rejected() -> None:
    with raises(UsageError, "capacity_without_respawn"):
        Chaos(capacity=CAPACITY).check_engine(Local(respawn=False))
