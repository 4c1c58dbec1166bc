"""Tests of blocks in pieces."""

import numpy as np
import pytest

from oddlot.engines.ray.object_chunks import MAX_BYTES, PIECE_BYTES, joined, pieces_of


@pytest.mark.parametrize("size", [1, 64, PIECE_BYTES, PIECE_BYTES + 64, 3 * PIECE_BYTES, MAX_BYTES + 64])
def test_chunks_join_to_the_original_block(size: int) -> None:
    block = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    pieces = pieces_of(block)
    again = joined(pieces)
    assert all(piece.nbytes <= max(PIECE_BYTES, size * (size > MAX_BYTES)) for piece in pieces)
    assert np.array_equal(again, block)
    assert again.ctypes.data == block.ctypes.data, "neighbours in memory are not copied"


def test_separate_chunks_are_copied() -> None:
    pieces = [np.full(3, 1, np.uint8), np.full(2, 2, np.uint8)]
    assert joined(pieces).tolist() == [1, 1, 1, 2, 2]
