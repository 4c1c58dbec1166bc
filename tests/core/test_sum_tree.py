"""The tree of sums over chunks: any division into complete subtrees gives the same additions."""

from collections.abc import Sequence
from random import Random

import pytest

from oddlot.core.sum_tree import CHUNK, additions, chunks_of, first_subtree, largest_subtree, samples_sent


def tree(first: int, size: int) -> str:
    """Return the definition of the sum over chunks as text."""
    if size == 1:
        return str(first)
    left = 1 << (size - 1).bit_length() - 1
    return f"({tree(first, left)}+{tree(first + left, size - left)})"


def summed(parts: Sequence[int]) -> str:
    """Return the sum that the hub computes from these subtrees."""
    stack, first = list[str](), 0
    for size, count in zip(parts, additions(parts), strict=True):
        stack.append(tree(first, size))
        for _ in range(count):
            right = stack.pop()
            stack[-1] = f"({stack[-1]}+{right})"
        first += size
    assert len(stack) == 1
    return stack[0]


@pytest.mark.parametrize("total", [1, 2, 3, 5, 8, 11, 12, 23, 64, 100])
def test_every_division_adds_in_the_same_order(total: int) -> None:
    chance = Random(total)
    for _ in range(50):
        parts, first = list[int](), 0
        while first < total:
            parts.append(largest_subtree(first, chance.randint(1, total), total))
            first += parts[-1]
        assert summed(parts) == tree(0, total)


@pytest.mark.parametrize("parts", [[1, 2, 1], [3, 1], [2, 3, 1], [4, 2, 3], [0, 1]])
def test_part_of_a_subtree_is_rejected(parts: list[int]) -> None:
    with pytest.raises(ValueError, match="complete subtree"):
        additions(parts)


def test_first_chunks_of_an_ended_task_are_a_subtree() -> None:
    for total in range(1, 20):
        for done in range(1, total + 1):
            kept = first_subtree(done, total)
            assert kept <= done < 2 * kept or kept == total
            additions([kept, *[1] * (total - kept)])


def test_samples_of_an_ended_task_are_those_of_a_subtree() -> None:
    assert samples_sent("sum", 3 * CHUNK, 5 * CHUNK + 7) == 2 * CHUNK
    assert samples_sent("sum", 3 * CHUNK, 3 * CHUNK) == 3 * CHUNK
    assert samples_sent("gradient", 3, 5) == 3
    assert [chunks_of(n) for n in (1, CHUNK, CHUNK + 1, CHUNK + 2)] == [1, 1, 1, 2], "none has one sample"
