"""Independent random generators, by name."""

from random import Random


def stream(seed: int, name: str) -> Random:
    """Return a random generator that is determined by a seed and a name."""
    return Random(f"{seed}:{name}")
