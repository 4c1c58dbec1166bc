"""Spans of samples: which ones a task has, how they are divided, and their minibatches."""

from typing import NamedTuple


class Span(NamedTuple):
    """Positions `start` to `stop` (exclusive) in the seeded order of epoch `epoch`."""

    epoch: int
    start: int
    stop: int


def samples_in(spans: tuple[Span, ...]) -> int:
    """How many samples the spans hold."""
    if len(spans) == 1:  # as nearly always: it is asked for several times a task
        return spans[0].stop - spans[0].start
    return sum(span.stop - span.start for span in spans)


def joined(spans: list[Span]) -> tuple[Span, ...]:
    """The same samples in order, in as few spans as they need."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and (found[-1].epoch, found[-1].stop) == (span.epoch, span.start):
            found[-1] = Span(span.epoch, found[-1].start, span.stop)
        else:
            found.append(span)
    return tuple(found)


def split(spans: tuple[Span, ...], samples: int) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """The first `samples` samples, and the rest."""
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
    """Where the minibatches of so many samples begin and, last, where they end.

    The last one is smaller, but no sample stands alone in it (BatchNorm fails there): it joins those before it.
    """
    alone = batch > 1 and samples > 1 and samples % batch == 1
    return [*range(0, samples - alone, batch), samples]
