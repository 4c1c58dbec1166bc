"""The division of an exact round into tasks: complete subtrees of the sum over its chunks."""

from collections.abc import Iterator, Sequence

from oddlot.core.sample_spans import Span, samples_in
from oddlot.core.sum_tree import CHUNK, chunks_of, largest_subtree

SMALL, SLACK = 16, 1.15
"""Equal parts of under 16 chunks may be exceeded by 15 %. Subtrees of at most an equal part may be half as large, and
the additional updates take longer than is gained."""


def free_parts(free: Sequence[Span], round_: Span) -> tuple[Span, ...]:
    """Return the parts of a round that can be assigned now."""
    return tuple(
        Span(epoch, start, min(stop, round_.stop))
        for epoch, start, stop in free
        if epoch == round_.epoch and start < round_.stop
    )


def task_sizes(free: Sequence[Span], round_: Span, workers: int) -> Iterator[int]:
    """Yield the samples of the next tasks of a round, in the order of assignment.

    `free` are the parts of the round that can be assigned now. A task is a complete subtree of about 1/`workers` of
    their chunks at most. So tasks become smaller towards the end of a round, and all workers end at about the same
    time, as in guided self-scheduling (Polychronopoulos and Kuck 1987).
    """
    total = chunks_of(samples_in((round_,)))
    part = sum(chunks_of(samples_in((span,))) for span in free) / workers
    limit = max(1, int(part * SLACK if part < SMALL else part))
    for _, start, stop in free:
        place = start
        while place < stop:
            first, rest = (place - round_.start) // CHUNK, chunks_of(stop - place)
            chunks = largest_subtree(first, min(limit, rest), total)
            samples = stop - place if chunks == rest else chunks * CHUNK
            yield samples
            place += samples
