"""Counts of failures by sample: rejected updates, and processes that ended or hung while they computed the sample."""

from collections.abc import Iterable, Mapping

from oddlot.core.errors import BadSamples
from oddlot.core.spans import Span, joined

STRIKES_UNTIL_BAD = 3
"""Processes that ended or hung while they computed a sample, until it counts as bad."""
HOW_TO_SKIP = "pass skip_bad=True (--skip-bad)"

Counts = dict[str, int]
"""Failures by sample, as "epoch:position"."""


def count(counts: Counts, spans: Iterable[Span]) -> dict[Span, int]:
    """Increment the counts of these samples, and return them by position."""
    found = {}
    for epoch, start, stop in spans:
        for position in range(start, stop):
            key = f"{epoch}:{position}"
            counts[key] = found[Span(epoch, position, position + 1)] = counts.get(key, 0) + 1
    return found


def forget(counts: Counts, spans: Iterable[Span]) -> None:
    """Delete the counts of these samples."""
    if counts:
        for epoch, start, stop in spans:
            for position in range(start, stop):
                counts.pop(f"{epoch}:{position}", None)


def by_position(counts: Counts) -> dict[Span, int]:
    """Return the counts by position."""
    places = ((tuple(map(int, key.split(":"))), number) for key, number in counts.items())
    return {Span(epoch, at, at + 1): number for (epoch, at), number in places}


def deadly(counts: Mapping[Span, int], why: str, *, skip_bad: bool) -> list[Span]:
    """Return the samples that count as bad. Raise BadSamples about them unless `skip_bad`."""
    found = [span for span, number in counts.items() if number >= STRIKES_UNTIL_BAD]
    if found and not skip_bad:
        times = max(counts.values())
        told = f"were being computed by {times} processes that {why}. Fix the samples, or {HOW_TO_SKIP}"
        raise BadSamples(joined(found), told)
    return found
