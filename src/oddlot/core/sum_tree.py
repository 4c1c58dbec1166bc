"""Sums over samples in a fixed order, so that their bits do not depend on who computed which part.

Floating-point addition is not associative. So the samples of a round are cut into chunks, and the chunks are added in a
binary tree, in the order of their positions: the tree of n chunks adds the tree of the first p, the largest power of
two below n, and the tree of the others. A task computes a complete subtree; the hub adds the rest of the tree.

Source: pairwise summation; Higham, "Accuracy and Stability of Numerical Algorithms" (2002), section 4.2.
"""

from collections.abc import Sequence

from oddlot.core.sample_spans import minibatch_cuts
from oddlot.core.tasks import Kind

CHUNK = 128
"""Samples of a chunk. The last chunk of a round may be smaller, or larger by one."""


def minibatch_size(kind: Kind, batch: int) -> int:
    """Return the size of the minibatches of a task, if the job's batch size is `batch`."""
    return CHUNK if kind == "sum" else batch


def first_subtree(chunks: int, total: int) -> int:
    """Return the chunks of the largest subtree among the first `chunks` of a tree of `total` chunks."""
    return chunks if chunks == total else 1 << (chunks.bit_length() - 1)


def samples_sent(kind: Kind, done: int, samples: int) -> int:
    """Return the samples of an update if a task of `samples` samples ends after `done` samples, at a minibatch.

    A sum ends with a complete subtree.
    """
    if kind != "sum" or done == samples:
        return done
    chunks = done // CHUNK
    return CHUNK * first_subtree(chunks, chunks_of(samples)) if chunks else 0


def chunks_of(samples: int) -> int:
    """Return the number of chunks of a range of samples that starts with a chunk."""
    return len(minibatch_cuts(samples, CHUNK)) - 1


def largest_subtree(first: int, limit: int, total: int) -> int:
    """Return the chunks of the largest subtree of a tree of `total` chunks that starts at chunk `first`.

    It has at most `limit` chunks, at least 1.
    """
    rest = total - first
    if rest <= limit and _is_complete(first, rest, total):
        return rest
    size = 1
    while 2 * size <= min(limit, rest) and first % (2 * size) == 0:
        size *= 2
    return size


def additions(parts: Sequence[int]) -> list[int]:
    """Return the number of additions after each part of a tree, with the two latest sums each.

    `parts` are the chunks of each part, in the order of positions. Raise ValueError if a part is not a complete
    subtree.
    """
    total, first = sum(parts), 0
    stack: list[tuple[int, int]] = []
    found = []
    for size in parts:
        if size < 1 or not _is_complete(first, size, total):
            raise ValueError(f"chunks {first} to {first + size} of {total} are not a complete subtree")
        node, count = (first, size), 0
        while stack and _are_siblings(stack[-1], node, total):
            left = stack.pop()
            node, count = (left[0], left[1] + node[1]), count + 1
        stack.append(node)
        found.append(count)
        first += size
    return found


def _is_complete(first: int, size: int, total: int) -> bool:
    """Return whether a range of chunks is a subtree."""
    whole = 1 << (size - 1).bit_length()  # the power of two from `size` on
    return first % whole == 0 and (size == whole or first + size == total)


def _are_siblings(left: tuple[int, int], right: tuple[int, int], total: int) -> bool:
    """Return whether two neighboring subtrees have the same parent."""
    (first, size), (start, other) = left, right
    if first % (2 * size):
        return False
    return other == size or (other < size and start + other == total)
