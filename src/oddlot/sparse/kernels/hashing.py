"""Codes of vectors, which are alike for vectors that are alike: `L` codes of `K` parts each."""

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.views import row

BIN, BITS = 8, 3
"""coordinates of which a digit of a DWTA code tells the largest, and the bits that takes"""
LANES = 64
"""vectors whose bins are compared at once"""
TABLE_BITS, MAX_BITS = 20, 63
"""A table has up to 2^20 buckets, and a code is a signed number of 64 bits."""
GOLDEN = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: products with it depend on all bits in their highest ones."""


def draw_bins(
    columns: int, bins: int, chance: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Which coordinates each bin has, of as few permutations as will do, and how an empty bin asks the others in
    turn."""
    permutations = -(-bins * BIN // columns)
    order = np.concatenate([chance.permutation(columns) for _ in range(permutations)])[: bins * BIN]
    coprime = [step for step in range(1, bins + 1) if np.gcd(step, bins) == 1]
    return order.astype(np.int32), chance.choice(coprime, bins).astype(np.int32)


@kernel
def bucket_of(code, bits):
    """Return the bucket of a code with this number of bits. Codes longer than `TABLE_BITS` are hashed."""
    if bits <= TABLE_BITS:
        return np.int64(code)
    return np.int64((np.uint64(code) * np.uint64(GOLDEN)) >> np.uint64(64 - TABLE_BITS))


@kernel
def pack_signs(part, parts, projections, codes):
    """SimHash: `codes[l, i]` is the bucket of the signs of projections of vector i, the first in the highest bit."""
    vectors, tables = projections.shape[0], codes.shape[0]
    bits = projections.shape[1] // tables
    for i in range(vectors * part // parts, vectors * (part + 1) // parts):
        projected = projections[i]
        for table in range(tables):
            code = 0
            for bit in range(table * bits, (table + 1) * bits):
                code = 2 * code + (projected[bit] > 0)
            codes[table, i] = bucket_of(code, bits)


@kernel
def keep_larger(values, digit, best, digits):
    """Give `digit` to each lane that has a larger value here than before. Zeros do not count."""
    for lane in range(LANES):
        better = (values[lane] != np.float32(0)) & (values[lane] > best[lane])
        best[lane] = values[lane] if better else best[lane]
        digits[lane] = digit if better else digits[lane]


@kernel
def largest_in_bins(part, parts, vectors, order, steps, codes):
    """DWTA (Chen, Shrivastava, UAI 2018): a digit is the place of the largest of 8 coordinates, `order` says which.

    Zeros do not count. A bin of zeros alone takes the digit of another one, asked in steps of `steps[bin]`, so that
    codes of sparse vectors differ too. Vectors are compared side by side, which vectorizes.
    """
    tables, bins, columns = codes.shape[0], steps.shape[0], vectors.shape[1]
    digits = bins // tables
    begin, end = vectors.shape[0] * part // parts, vectors.shape[0] * (part + 1) // parts
    turned, best = np.zeros((columns, LANES), np.float32), np.empty(LANES, np.float32)
    found = np.empty((bins, LANES), np.int32)
    for low in range(begin, end, LANES):
        here = min(LANES, end - low)
        for lane in range(here):
            for c in range(columns):
                turned[c, lane] = vectors[low + lane, c]
        for b in range(bins):
            best[:], found[b] = -np.inf, -1
            for j in range(BIN):
                keep_larger(row(turned, order[b * BIN + j]), np.int32(j), best, row(found, b))
        for lane in range(here):
            any_found = False
            for b in range(bins):
                any_found = any_found or found[b, lane] >= 0
            for table in range(tables):
                code = 0
                for b in range(table * digits, (table + 1) * digits):
                    digit, other = found[b, lane], b
                    while digit < 0 and any_found:
                        other = (other + steps[b]) % bins
                        digit = found[other, lane]
                    code = BIN * code + max(digit, 0)
                codes[table, low + lane] = bucket_of(code, digits * BITS)
