"""Machines, and where a job is placed: consolidated best fit (Helios, section 4.2.2)."""

from bisect import insort
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Self

from oddlot.queue.core.jobs import Part, Placement


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine with GPUs and cores. With 0 cores, cores are not counted on it."""

    id: str
    gpus: int = 0
    cpus: int = 0


class MachinePool:
    """The free GPUs and cores of machines.

    A job on one machine takes the machine with the fewest free GPUs that has enough. A larger job takes whole machines
    of the largest size, and one more machine for the rest.
    """

    def __init__(self, machines: Iterable[Machine] = ()) -> None:
        self.machines: dict[str, Machine] = {}
        self.gpus: dict[str, int] = {}
        """Free GPUs by machine."""
        self.cpus: dict[str, int] = {}
        """Free cores by machine."""
        self.by_gpus: dict[int, list[str]] = {}
        """Sorted names of the machines by the number of free GPUs."""
        self.largest = 0
        """Most GPUs of one machine."""
        for machine in machines:
            self.join(machine)

    def copy(self) -> Self:
        """Return a pool with the same machines, which changes independently."""
        other = type(self)()
        other.machines, other.largest = self.machines, self.largest
        other.gpus, other.cpus = dict(self.gpus), dict(self.cpus)
        other.by_gpus = {free: list(names) for free, names in self.by_gpus.items()}
        return other

    def emptied(self) -> Self:
        """Return a pool with the same machines, all of them free."""
        return type(self)(self.machines.values())

    def join(self, machine: Machine) -> None:
        """Add a machine, or replace the machine of this name. What is used on it stays in use."""
        used = self._leave(machine.id)
        self.machines = {**self.machines, machine.id: machine}
        self.cpus[machine.id] = machine.cpus - used[1]
        self._list(machine.id, machine.gpus - used[0])
        self.largest = max(one.gpus for one in self.machines.values())

    def lose(self, name: str) -> None:
        """Remove a machine."""
        self._leave(name)
        self.machines = {other: machine for other, machine in self.machines.items() if other != name}
        self.largest = max((one.gpus for one in self.machines.values()), default=0)

    def place(self, gpus: int, cpus: int, without: Collection[str] = ()) -> Placement | None:
        """Return where a job fits now, or None, without using some machines. Nothing is taken."""
        if gpus == 0:
            return self._by_cpus(cpus, without)
        if gpus <= self.largest:
            name = self._best_fit(gpus, cpus, without)
            return None if name is None else (Part(name, gpus, cpus),)
        return self._over_machines(gpus, cpus, without)

    def take(self, placement: Placement) -> None:
        """Count a placement as used."""
        for part in placement:
            self._change(part, -1)

    def free(self, placement: Placement) -> None:
        """Count a placement as free. Machines that are gone are left out."""
        for part in placement:
            if part.machine in self.machines:
                self._change(part, 1)

    def _best_fit(self, gpus: int, cpus: int, without: Collection[str]) -> str | None:
        for free in range(gpus, self.largest + 1):
            for name in self.by_gpus.get(free, ()):
                if self._has_cpus(name, cpus) and name not in without:
                    return name
        return None

    def _by_cpus(self, cpus: int, without: Collection[str]) -> Placement | None:
        fitting = [
            name
            for name, machine in self.machines.items()
            if self.cpus[name] >= cpus and machine.cpus and name not in without
        ]
        if not fitting:
            return None
        name = min(fitting, key=lambda name: (self.machines[name].gpus, self.cpus[name], name))
        return (Part(name, 0, cpus),)

    def _over_machines(self, gpus: int, cpus: int, without: Collection[str]) -> Placement | None:
        if not self.largest:
            return None
        whole, rest = divmod(gpus, self.largest)
        share = -(-cpus * self.largest // gpus)
        free = self.by_gpus.get(self.largest, ())
        names = [name for name in free if name not in without and self._has_cpus(name, share)][:whole]
        if len(names) < whole:
            return None
        parts = [Part(name, self.largest, share) for name in names]
        if rest:
            last = self._best_fit(rest, max(0, cpus - whole * share), [*names, *without])
            if last is None:
                return None
            parts.append(Part(last, rest, max(0, cpus - whole * share)))
        return tuple(parts)

    def _has_cpus(self, name: str, cpus: int) -> bool:
        return not cpus or not self.machines[name].cpus or self.cpus[name] >= cpus

    def _change(self, part: Part, sign: int) -> None:
        free = self.gpus[part.machine]
        self.cpus[part.machine] += sign * part.cpus
        if part.gpus:
            self.by_gpus[free].remove(part.machine)
            self._list(part.machine, free + sign * part.gpus)

    def _list(self, name: str, free: int) -> None:
        self.gpus[name] = free
        insort(self.by_gpus.setdefault(free, []), name)

    def _leave(self, name: str) -> tuple[int, int]:
        """Remove a machine from the lists. Return the GPUs and cores that were used on it."""
        if name not in self.machines:
            return 0, 0
        machine, free = self.machines[name], self.gpus.pop(name)
        self.by_gpus[free].remove(name)
        return machine.gpus - free, machine.cpus - self.cpus.pop(name)
