"""Blocks of bytes in Ray's object store: written in pieces, read as a whole and without copying.

Ray copies an array above 1 MiB with six threads, whose start takes longer than the copy unless the array is large.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
PIECE_BYTES = 1 << 20
"""Largest array that Ray copies with one thread. A multiple of 64, so that pieces in the store have no gaps."""
MAX_BYTES = 32 << 20
"""Size of a block from which several threads are faster."""


def pieces_of(block: Bytes) -> list[Bytes]:
    """Return views of a block, to be put into the object store."""
    if block.nbytes > MAX_BYTES:
        return [block]
    return [block[start : start + PIECE_BYTES] for start in range(0, block.nbytes, PIECE_BYTES)]


def joined(pieces: Sequence[Bytes]) -> Bytes:
    """Return the block of these pieces: a view if they are neighbours in memory, as in the object store."""
    first, sizes = pieces[0], [piece.nbytes for piece in pieces]
    at = first.ctypes.data
    for piece in pieces:
        if piece.ctypes.data != at:
            return np.concatenate(pieces)
        at += piece.nbytes
    # The first piece keeps the whole object of the store alive.
    return np.lib.stride_tricks.as_strided(first, (sum(sizes),), writeable=False)
