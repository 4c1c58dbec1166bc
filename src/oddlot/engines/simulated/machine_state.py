"""The state of one simulated machine."""

from dataclasses import dataclass

from oddlot.core.random_streams import stream
from oddlot.core.tasks import NodeId
from oddlot.machines.delay_models import Times
from oddlot.machines.machine import Machine


@dataclass(slots=True, eq=False)
class MachineState:
    """A machine, whose workers follow each other."""

    machine: Machine
    delay: Times
    link_delay: Times
    lifetime: Times | None
    price: float
    """Dollars an hour, now."""
    has_capacity: bool = True
    """Whether its zone has room for it."""
    is_barred: bool = False
    """Whether fault injection keeps it away."""
    node: NodeId = ""
    """Its present worker, or the one that is starting; empty while there is none."""
    is_ready: bool = False
    workers: int = 0
    """How many workers it has had."""
    is_owed: bool = False
    """Whether a machine would have been ordered, were it not barred."""

    @classmethod
    def of(cls, machine: Machine, seed: int) -> "MachineState":
        """Return the state of a machine that was not ordered yet."""
        # One stream a machine: one machine more or less leaves the others' random times as they were.
        rng = stream(seed, f"machine {machine.name}")
        delay, link_delay = machine.delay.start(rng), machine.link.delay.start(rng)
        lifetime = machine.lifetime.start(rng) if machine.lifetime else None
        return cls(machine, delay, link_delay, lifetime, machine.dollars_per_hour)
