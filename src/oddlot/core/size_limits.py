"""Size limits of decompressed files, as protection against decompression bombs."""

MIN_BYTES = 1 << 26
"""Bytes that any file may decompress to."""
MAX_RATIO = 200
"""Largest compression ratio. Real data have 2-20; gzip reaches 1,032 with zeros."""


def most_unpacked(packed: int) -> int:
    """Return the limit of decompressed bytes for a compressed file of this size."""
    return max(MIN_BYTES, MAX_RATIO * packed)
