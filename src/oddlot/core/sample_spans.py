"""Spans of samples, and their division into tasks and minibatches."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    """Positions `start` to `stop` (exclusive) in the seeded order of epoch `epoch`."""

    epoch: int
    start: int
    stop: int


def samples_in(spans: tuple[Span, ...]) -> int:
    """Return the number of samples of the spans."""
    if len(spans) == 1:  # fast path: nearly always, and called several times per task
        return spans[0].stop - spans[0].start
    return sum(span.stop - span.start for span in spans)


def joined(spans: list[Span]) -> tuple[Span, ...]:
    """Return the spans sorted, with adjacent spans joined."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and (found[-1].epoch, found[-1].stop) == (span.epoch, span.start):
            found[-1] = Span(span.epoch, found[-1].start, span.stop)
        else:
            found.append(span)
    return tuple(found)


def without(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """Return the parts of `spans` outside of all `others`."""
    by_epoch = defaultdict[int, list[Span]](list)
    for other in sorted(others):
        by_epoch[other.epoch].append(other)
    found = []
    for epoch, start, stop in spans:
        place = start
        for _, first, last in by_epoch[epoch]:
            if place < (end := min(first, stop)):
                found.append(Span(epoch, place, end))
            place = max(place, last)
        if place < stop:
            found.append(Span(epoch, place, stop))
    return found


def split(spans: tuple[Span, ...], samples: int) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Split spans into the first `samples` samples and the rest."""
    done, rest = [], []
    for epoch, start, stop in spans:
        cut = min(stop, start + samples)
        samples -= cut - start
        if cut > start:
            done.append(Span(epoch, start, cut))
        if cut < stop:
            rest.append(Span(epoch, cut, stop))
    return tuple(done), tuple(rest)


def minibatch_cuts(samples: int, batch: int) -> list[int]:
    """Return the starts of the minibatches of a task, and the end of the last minibatch.

    The last minibatch is smaller. A single sample is added to the previous minibatch, because BatchNorm needs two
    samples.
    """
    alone = batch > 1 and samples > 1 and samples % batch == 1
    return [*range(0, samples - alone, batch), samples]
