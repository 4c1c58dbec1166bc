"""The speed of a fleet: slower machines, and machines that are as fast as a profile has measured."""

from dataclasses import dataclass, replace

from oddlot.core.strategy_wrapper import layers
from oddlot.machines.machine import Machine
from oddlot.machines.market import Fleet, Zone, all_machines
from oddlot.planner.candidates import Setup
from oddlot.planner.profile import Profile
from oddlot.strategies.synchronous import Synchronous


@dataclass(frozen=True)
class MeasuredSpeed:
    """The speed of a fleet by the samples of a task, from a profile.

    The fastest machines of the fleet are as fast as the profiled one. The others keep their relative speed.
    """

    profile: Profile
    fastest: float
    """Seconds per sample of the fastest machine in the fleet file."""

    @classmethod
    def of(cls, profile: Profile, fleet: Fleet) -> "MeasuredSpeed":
        """Return the speed of a fleet."""
        return cls(profile, min(each.seconds_per_sample for each in all_machines(fleet.machines)))

    def factor(self, setup: Setup, fleet: Fleet) -> float:
        """Return the measured seconds per sample, relative to those of the fleet file."""
        workers = sum(1 for _ in all_machines(fleet.machines))
        return self.profile.seconds_per_sample(task_samples(setup, workers)) / self.fastest

    def applied(self, fleet: Fleet, setup: Setup) -> Fleet:
        """Return the fleet with the measured speeds and, unless it has its own, the measured merge time."""
        return with_merge_time(slowed(fleet, self.factor(setup, fleet)), self.profile.merge_seconds)


def task_samples(setup: Setup, workers: int) -> int:
    """Return the samples that a worker computes at once."""
    if isinstance(layers(setup.strategy)[-1], Synchronous):  # the workers of a group divide the batch
        return max(1, setup.batch_size * setup.groups // workers)
    return setup.batch_size


def slowed(fleet: Fleet, factor: float) -> Fleet:
    """Return the fleet with `factor` times the computation time of every machine."""

    def slower(machine: Machine) -> Machine:
        return replace(machine, seconds_per_sample=factor * machine.seconds_per_sample)

    machines = [
        replace(one, machine=slower(one.machine)) if isinstance(one, Zone) else slower(one)
        for one in fleet.machines
    ]
    return replace(fleet, machines=machines)


def with_merge_time(fleet: Fleet, seconds: float) -> Fleet:
    """Return the fleet with this merge time of the hub, unless the hub has its own."""
    if fleet.hub.seconds_per_update:
        return fleet
    return replace(fleet, hub=replace(fleet.hub, seconds_per_update=seconds))
