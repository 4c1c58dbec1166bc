"""How much a compressed file may hold: a few megabytes of it can stand for more than there is memory for."""

MIN_BYTES = 1 << 26
"""that a file may hold, however small it is"""
MAX_RATIO = 200
"""of what a file holds to its own size: real data have 2 to 20, gzip makes at most 1,032 of zeros"""


def most_unpacked(packed: int) -> int:
    """Bytes that a compressed file of so many bytes may hold."""
    return max(MIN_BYTES, MAX_RATIO * packed)
