"""Merged work of a run, from its records."""

from oddlot import Run
from oddlot.core.commands import Blend, Step
from oddlot.core.events import Arrived
from oddlot.core.tasks import Facts

SINCE, UNTIL = 1 / 4, 7 / 8
"""Shares of a run's time. All workers have started by then, and work computed before the end can still be merged."""


def merged_a_second(run: Run) -> float:
    """Return the samples per second that were computed between `SINCE` and `UNTIL` and merged later.

    Samples are spread evenly over their task's seconds, so the ends of rounds matter little.
    """
    since, until = SINCE * run.summary["seconds"], UNTIL * run.summary["seconds"]
    arrived, merged = dict[str, tuple[float, Facts]](), 0.0
    for record in run.records:
        if isinstance(record.event, Arrived):
            arrived[record.event.update.id] = record.now, record.event.update
        for action in record.actions:
            if isinstance(action, Step | Blend):
                for now, facts in map(arrived.pop, action.shares):
                    end = now - facts.seconds.get("up", 0.0)
                    within = min(end, until) - max(end - facts.seconds["compute"], since)
                    merged += facts.samples * max(0.0, within) / facts.seconds["compute"]
    return float(merged / (until - since))
