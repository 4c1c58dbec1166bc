"""The state of one simulated machine."""

from dataclasses import dataclass

from oddlot.core.random_streams import stream
from oddlot.core.tasks import NodeId
from oddlot.machines.delay_models import Times
from oddlot.machines.machine import Machine


@dataclass(slots=True, eq=False)
class MachineState:
    """A machine, which has one worker after the other."""

    machine: Machine
    delay: Times
    link_delay: Times
    lifetime: Times | None
    price: float
    """Current price, in dollars per hour."""
    has_capacity: bool = True
    """Whether its zone has capacity for it."""
    is_barred: bool = False
    """Whether fault injection makes it unavailable."""
    node: NodeId = ""
    """Its running or starting worker; empty if there is none."""
    is_ready: bool = False
    workers: int = 0
    """Number of its workers so far."""
    is_owed: bool = False
    """Whether the machine must be ordered when it is no longer barred."""

    @classmethod
    def of(cls, machine: Machine, seed: int) -> "MachineState":
        """Return the state of a machine that was not ordered yet."""
        # One stream a machine: one machine more or less leaves the others' random times as they were.
        rng = stream(seed, f"machine {machine.name}")
        delay, link_delay = machine.delay.start(rng), machine.link.delay.start(rng)
        lifetime = machine.lifetime.start(rng) if machine.lifetime else None
        return cls(machine, delay, link_delay, lifetime, machine.dollars_per_hour)
