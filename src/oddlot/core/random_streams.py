"""Named random generators, which are independent of each other."""

from random import Random


def stream(seed: int, name: str) -> Random:
    """Return the generator for a seed and a name."""
    return Random(f"{seed}:{name}")
