"""Sorting networks that move the smallest and the largest values of a column to its ends."""

from functools import cache

Comparators = tuple[tuple[int, int], ...]
"""Pairs of wires (low, high): a comparator puts the smaller value on the first wire."""


@cache
def trimming_network(count: int, trim: int) -> Comparators:
    """Return a network that puts the `trim` smallest values first and the `trim` largest last, each in any order.

    Batcher's odd-even merge sort (Knuth, "The Art of Computer Programming", volume 3, 5.3.4) without the comparators
    that have no effect on these three groups.
    """
    kept, touched = list[tuple[int, int]](), set[int]()
    for low, high in reversed(_batcher(count)):
        if _group(low, count, trim) != _group(high, count, trim) or touched & {low, high}:
            kept.append((low, high))
            touched |= {low, high}
    return tuple(reversed(kept))


def _group(wire: int, count: int, trim: int) -> int:
    """Return 0 for the smallest values, 1 for the middle, 2 for the largest."""
    return 0 if wire < trim else 2 if wire >= count - trim else 1


def _batcher(count: int) -> list[tuple[int, int]]:
    """Return a network that sorts `count` values. Wires above `count` would hold infinity, and are left out."""
    size = 1 << max(0, count - 1).bit_length()
    found, width = list[tuple[int, int]](), 1
    while width < size:
        step = width
        while step:
            for start in range(step % width, size - step, 2 * step):
                for low in range(start, min(start + step, size - step)):
                    high = low + step
                    if low // (2 * width) == high // (2 * width) and high < count:
                        found.append((low, high))
            step //= 2
        width *= 2
    return found
