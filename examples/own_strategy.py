"""A custom strategy: step along each gradient as it arrives, and drop gradients that are too stale.

python examples/own_strategy.py
oddlot train digits --strategy examples.own_strategy:DropStale --set strategy.limit=2
"""

from collections.abc import Iterable
from dataclasses import dataclass

import oddlot
from oddlot.commands import Command, Drop, Step
from oddlot.events import Arrived, Event
from oddlot.strategies import Strategy, Traits, View, assign_all
from oddlot.workloads import load_workload


@dataclass
class DropStale(Strategy):
    """Asynchronous SGD that drops gradients more than `limit` versions old, and damps the others."""

    limit: int = 4

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Merge or drop the update, then assign a minibatch to each idle worker."""
        if isinstance(event, Arrived):
            staleness = view.staleness(event.update)
            share = 1 / (1 + staleness)
            yield Step({event.update.id: share}) if staleness <= self.limit else Drop(event.update.id)
        yield from assign_all(view, view.batch)

    def traits(self, batch_size: int) -> Traits:
        """Declare that each update is a step, and that each task has one minibatch."""
        return Traits(updates=1, task_samples=batch_size)


if __name__ == "__main__":
    machines = [oddlot.Machine(f"m{i}", seconds_per_sample=0.001 * (1 + 19 * (i == 0))) for i in range(4)]
    run = oddlot.fit(
        load_workload("digits"), DropStale(limit=4), oddlot.Simulated(machines), until="epochs>=10"
    )
    print(f"accuracy {run.accuracy:.2f}, {run.summary['wasted'].get('dropped', 0)} samples dropped")
