"""Named sources of chance: one more draw in one place disturbs nothing elsewhere."""

from random import Random


def stream(seed: int, name: str) -> Random:
    """`stream(7, "machines")` and `stream(7, "strategy")` never meet."""
    return Random(f"{seed}:{name}")
