"""Repeat one world: python -m tests.simulation STRATEGY SEED. Prints its machines, its faults and its trace."""

import sys

from tests.simulation.world import World, told

world = World(sys.argv[1], int(sys.argv[2]))
print(*world.machines, *world.chaos.faults, sep="\n")
print(
    f"{world.strategy}, {world.size} samples, {world.epochs} epochs, the hub is lost after {world.losses} records"
)
try:
    world.run()
finally:
    print(told(world.log))
