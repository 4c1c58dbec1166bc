"""What a run has merged, by its records."""

from oddlot import Run
from oddlot.core.words import Arrived, Blend, Step


def merged_since(run: Run, since: float) -> int:
    """Samples, from then on."""
    arrived, merged = dict[str, int](), 0
    for record in run.records:
        if isinstance(record.event, Arrived):
            arrived[record.event.update.id] = record.event.update.samples
        for action in record.actions:
            if isinstance(action, Step | Blend):
                merged += sum(arrived.pop(update) for update in action.shares) * (record.now >= since)
    return merged
