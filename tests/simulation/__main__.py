"""Repeat the world of one seed, and print its machines, faults and trace: `python -m tests.simulation STRATEGY SEED`.

`python -m tests.simulation corpus` selects the seeds of the regular tests.
"""

import json
import sys
from itertools import combinations
from pathlib import Path

from tests.simulation.world import MISHAPS, STRATEGIES, World, trace_of

SEEDS, KEPT = 400, 30


def corpus(name: str) -> list[int]:
    """Return seeds that cover all mishaps, and many combinations of three mishaps."""
    threes = dict[int, set[tuple[str, ...]]]()
    for seed in range(SEEDS):
        world = World(name, seed)
        world.run()
        seen = sorted(world.seen & MISHAPS)
        threes[seed] = {*combinations(seen, 3), *combinations(seen, 1)}
    kept, covered = list[int](), set[tuple[str, ...]]()
    while len(kept) < KEPT:
        best = max(threes.keys() - kept, key=lambda seed: (len(threes[seed] - covered), -seed))
        covered |= threes[best]
        kept.append(best)
    return sorted(kept)


def repeat(name: str, seed: int) -> None:
    """Print the world of a seed, and its trace, even if the run fails."""
    world = World(name, seed)
    print(*world.machines, *world.chaos.faults, sep="\n")
    print(f"{world.strategy}, {world.size} samples, {world.epochs} epochs, lost after {world.losses} records")
    try:
        world.run()
    finally:
        print(trace_of(world.log))


match sys.argv[1:]:
    case ["corpus"]:
        chosen = ",\n".join(f'"{name}": {json.dumps(corpus(name))}' for name in STRATEGIES)
        (Path(__file__).parent / "corpus.json").write_text(f"{{\n{chosen}\n}}\n")
    case [name, seed] if name in STRATEGIES and seed.isdecimal():
        repeat(name, int(seed))
    case _:
        sys.exit(f"usage: python -m tests.simulation {'|'.join(STRATEGIES)} SEED")
