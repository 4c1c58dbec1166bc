"""What of a run's work was merged, by its records."""

from oddlot import Run
from oddlot.core.commands import Blend, Step
from oddlot.core.events import Arrived
from oddlot.core.tasks import Facts

SINCE, UNTIL = 1 / 4, 7 / 8
"""shares of a run's time: workers have started then, and what was computed before that may be merged after it"""


def merged_a_second(run: Run) -> float:
    """Samples computed a second, between these, that were merged in the end.

    Each counts where it was computed, evenly over its task's seconds: so it matters little when rounds end.
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
