"""Locality-sensitive hashing: similar vectors often have equal codes. There are L codes of K digits each."""

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.views import row

BIN, BITS = 8, 3
"""Number of coordinates in a bin of DWTA, and number of bits of a digit, the position of the largest coordinate."""
LANES = 64
"""Number of vectors whose bins are compared at once."""
TABLE_BITS, MAX_BITS = 20, 63
"""Largest numbers of bits of a bucket's number, and of a code. A code is a signed 64-bit integer."""
GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio. The highest bits of a product with it depend on all bits of the other factor."""


def draw_bins(
    columns: int, bins: int, chance: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Draw the coordinates of each bin, and the step of an empty bin's search through the other bins.

    Return `order`, int32 [bins * 8], from the fewest possible permutations of the coordinates, and `steps`, int32
    [bins], each coprime to the number of bins.
    """
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
    """Compute SimHash codes: `codes[l, i]` is the bucket of the signs of vector i's projections in table l.

    `projections` is [vectors, tables * bits], and `codes` is [tables, vectors]. The first sign is the highest bit.
    """
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
    """Update `best` and `digits` in lanes with a larger value than before. Zeros are ignored. Arrays are [LANES]."""
    for lane in range(LANES):
        better = (values[lane] != np.float32(0)) & (values[lane] > best[lane])
        best[lane] = values[lane] if better else best[lane]
        digits[lane] = digit if better else digits[lane]


@kernel
def largest_in_bins(part, parts, vectors, order, steps, codes):
    """Compute DWTA codes (Chen, Shrivastava, UAI 2018): a digit is the position of the largest of 8 coordinates.

    `vectors` is [vectors, columns], and `codes` is [tables, vectors]. `order` and `steps` are from `draw_bins`. Zeros
    are ignored. A bin with only zeros takes the digit of another bin, searched in steps of `steps[bin]`, so codes of
    sparse vectors differ too. Vectors are compared side by side, to vectorize the loop.
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
