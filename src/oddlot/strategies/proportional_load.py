"""Task sizes in proportion to the speed of workers, for machines of different speeds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated

from oddlot.core.commands import Assign, Command
from oddlot.core.events import Event
from oddlot.core.strategy import Traits, View
from oddlot.core.strategy_wrapper import StrategyWrapper
from oddlot.core.support.errors import UsageError
from oddlot.core.support.validation import Must
from oddlot.core.tasks import NodeId


@dataclass
class ProportionalLoad(StrategyWrapper):
    """Size the tasks of the inner strategy in proportion to each worker's measured speed.

    All tasks then take about equally long, and their total is unchanged. Use it for machines of different speeds.
    Similar machines with varying times get varying loads, which costs a few percent.

    Speed is samples per second from assignment to update, over a worker's latest tasks. It includes the network, so
    slow links are balanced too. A worker without an update gets the inner strategy's task size: if the inner strategy
    cancels all its tasks, its speed stays unknown. Do not use `AdaptiveLoad` as the inner strategy: it measures rounds
    of equal loads.

    Paper: Chen et al., "Semi-Dynamic Load Balancing: Efficient Distributed Learning in Non-Dedicated Environments"
    (SoCC 2020), section 3.
    """

    least: Annotated[float, Must("above 0 and at most 1", lambda least: 0 < least <= 1)] = 0.05
    """Smallest task size, as a share of the inner strategy's task size. It keeps slow workers measured."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.traits(1).shard_tasks:
            raise UsageError(
                f"inner = {type(self.inner).__name__}(...) assigns whole shards, whose size cannot follow the speed",
                "shard_tasks_inside",
                "inner",
                inner=type(self.inner).__name__,
            )

    def traits(self, batch_size: int) -> Traits:
        """Return the inner strategy's traits. Loads vary."""
        return replace(super().traits(batch_size), varies_loads=True)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Return the inner strategy's commands with other numbers of samples."""
        commands = list(self.inner.on(event, view))
        assigns = any(isinstance(command, Assign) for command in commands)
        speeds = dict(self._speeds(view)) if assigns else {}
        mean = sum(speeds.values()) / max(1, len(speeds))
        for command in commands:
            if isinstance(command, Assign) and command.node in speeds:
                share = max(self.least, speeds[command.node] / mean)
                yield replace(command, samples=max(1, round(share * command.samples)))
            else:
                yield command

    @staticmethod
    def _speeds(view: View) -> Iterator[tuple[NodeId, float]]:
        """Yield the speed of each measured worker, in samples per second."""
        for node in view.nodes:
            member = view.worker_stats.members[node]
            if member.results and member.pace > 0:
                yield node, 1 / member.pace
