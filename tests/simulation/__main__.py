"""Repeat one world: python -m tests.simulation STRATEGY SEED. Prints its machines, its faults and its trace."""

import sys

from tests.simulation.world import STRATEGIES, World, told

if len(sys.argv) != 3 or sys.argv[1] not in STRATEGIES or not sys.argv[2].isdecimal():
    sys.exit(f"usage: python -m tests.simulation {'|'.join(STRATEGIES)} SEED")
world = World(sys.argv[1], int(sys.argv[2]))
print(*world.machines, *world.chaos.faults, sep="\n")
print(
    f"{world.strategy}, {world.size} samples, {world.epochs} epochs, the hub is lost after {world.losses} records"
)
try:
    world.run()
finally:
    print(told(world.log))
