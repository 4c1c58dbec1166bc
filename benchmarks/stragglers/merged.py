"""What a run has merged, by its records."""

from itertools import pairwise

from oddlot import Run
from oddlot.core.words import Arrived, Blend, Step


def merged_a_second(run: Run, since: float) -> float:
    """Samples that were merged after the first merge from then on until the last one, over the seconds between these.

    So whole rounds stand beside the time that they took. A wait at the end that is longer than any between merges
    counts too. 0: there was one merge at most.
    """
    arrived, merges = dict[str, int](), list[tuple[float, int]]()
    for record in run.records:
        if isinstance(record.event, Arrived):
            arrived[record.event.update.id] = record.event.update.samples
        for action in record.actions:
            if isinstance(action, Step | Blend):
                merges.append((record.now, sum(arrived.pop(update) for update in action.shares)))
    merges = [one for one in merges if one[0] >= since]
    first, last = (merges[0][0], merges[-1][0]) if merges else (0.0, 0.0)
    if first == last:
        return 0.0
    longest = max(then - before for (before, _), (then, _) in pairwise(merges))
    end = run.summary["seconds"] if run.summary["seconds"] - last > longest else last
    return sum(samples for now, samples in merges if now > first) / (end - first)
